// Lookup of operators, import rules and kernels. Families are listed in all_ops.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/builder.h"
#include "graph/op.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

enum class Backend : std::uint8_t { kReference, kCpu };

/// What one family of operators (ops/DIRECTORY/FAMILY.cpp with its kernel files) offers.
struct OpFamily {
  std::string_view name;
  std::span<const OpDef> ops;
  std::span<const ImportRule> imports;
  std::span<const KernelEntry>
      reference;  // plain loops over float, double and, where folding needs it, integers
  std::span<const KernelEntry> cpu;  // float; missing operators run with the reference kernel
  /// Whether the family's kernel supports the request's bfloat16 or float16 tensors directly;
  /// otherwise it runs in float between conversions (narrow_kernel.h). Null: never.
  bool (*takes_narrow)(Backend backend, const KernelRequest& request) = nullptr;
};

std::span<const OpFamily* const> all_families();

const OpDef* find_op(std::string_view name);
const ImportRule* find_import(std::string_view onnx_op_type);
/// Names of all ONNX operators that can be imported, sorted.
std::vector<std::string_view> importable_operators();

/// Makes the kernel of a node; kCpu falls back to the reference kernel. Error (kModel) when there
/// is none for these types.
std::unique_ptr<Kernel> make_kernel(Backend backend, const KernelRequest& request);
/// Whether the CPU has a kernel of its own for the operator.
bool has_cpu_kernel(std::string_view op);

/// Evaluates one node on constants with the reference kernels, for GraphBuilder. Empty when outputs
/// would exceed 256 MiB.
std::vector<HostTensor> evaluate(const Node& node, std::span<const HostTensor> inputs,
                                 std::span<const TensorType> outputs);

/// A builder that knows every operator and folds constants.
GraphBuilder make_builder(Graph& graph);

}  // namespace pipetrain
