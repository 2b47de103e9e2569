// A chain or DAG of element-wise operators as one operator: its attribute `program` is the
// expression, in text, so that it can be printed, interpreted block by block on the CPU and
// compiled for a device.
//
//   Add 0 1; Gelu 2 approximate=tanh; Dropout 3 key=4 ratio=0.1     results: [4]
//
// Integers after the operator are operand indices: first the node's inputs (here 0 and 1), then the
// steps in order. All steps have the shape of the outputs; inputs broadcast to it. `as` gives the
// result type of a step where it differs from the inputs' type; the result is rounded to it: `Mul 0
// 1 as=bfloat16`, `Greater 0 1 as=bool`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/attributes.h"
#include "graph/graph.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

struct FusedStep {
  std::string op;  // an element-wise canonical operator, or Dropout
  std::vector<int> operands;
  Attributes attributes;
  DType stored = DType::kUndefined;  // kUndefined: the type that all inputs have
};

struct FusedProgram {
  std::vector<FusedStep> steps;
  std::vector<int> results;  // the step of each output

  std::string text() const;
  /// The result type of a step computed as a separate node.
  DType stored(int step, std::span<const TensorType> inputs) const;
};

/// Maximum number of operands of a program (inputs and steps). Kernels hold a block of each.
inline constexpr int kMostFusedOperands = 24;

/// What a backend can fuse.
enum class FusedTypes : std::uint8_t {
  kFloat32,
  kStored,  // float32, bfloat16 and float16 in any mix, and casts between them
  kCpu,     // those, and bool and int64 in comparisons, logic, choices and casts
};

/// Whether a node can be a step of a fused program: a known operator with supported types, one
/// output, and operands that broadcast to it.
bool is_fusible(const Graph& graph, const Node& node, FusedTypes types);

/// The attributes of a Fused node.
Attributes fused_attributes(const FusedProgram& program);
/// Parses them; Error (kModel) if they are not a valid program over `input_count` inputs.
FusedProgram fused_program(const Attributes& attributes, int input_count);

std::span<const KernelEntry> fused_reference_kernels();
std::span<const KernelEntry> fused_cpu_kernels();

}  // namespace pipetrain
