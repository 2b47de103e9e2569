// What every test of an operator does: check gradients against central differences in double, check
// the CPU kernel against the reference kernel, go through an import rule. Tensors are made and
// compared in test_tensors.h, graphs and nodes run in run_kernels.h.
//
// All functions report through GoogleTest expectations; tensors are seeded, so a failure repeats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "ops/kernel/kernel.h"
#include "ops/registry/registry.h"
#include "support/run_kernels.h"
#include "support/test_tensors.h"

namespace pipetrain::test {

// --- checks ---

/// One input of a check: random in [low, high) unless `values` is given (as float64, whatever the
/// dtype).
struct InputSpec {
  Shape shape;
  double low = -1;
  double high = 1;
  DType dtype = DType::kFloat32;  // the check replaces float32 by the type it works in
  std::vector<double> values = {};
  bool differentiate = true;  // integers and bool never are
  bool absent = false;        // an optional input that is left out
};

struct GradientOptions {
  std::vector<std::size_t> outputs = {
      0};  // the outputs that are projected; the others have no gradient
  double tolerance = 1e-6;
  double step = 1e-5;
  RunContext context = {};
};

/// Builds the operator in float64, projects the outputs on random tensors, and compares the
/// derivative along three random directions per input (computed with the reference kernels of the
/// gradient nodes) with central differences. Also checks the gradients' types, and that asking for
/// one input only gives the same gradient.
void check_gradients(std::string_view op, const Attributes& attributes,
                     const std::vector<InputSpec>& inputs, const GradientOptions& options = {});

/// How far an element y of a float32 result may be from the float64 reference: factor * (|y| + s),
/// where s is how far y moves, in proportion, when every input moves by a random small part of
/// itself. A kernel that rounds its inputs and its result, and whose steps amount to no more, stays
/// within a few units of rounding of that, so that the smallest elements are checked as
/// closely as the largest. `kWhole` takes the root mean square of the whole result for s, for an
/// operator whose method mixes elements of different sizes; its case says why.
struct Tolerance {
  enum class Scale { kElement, kWhole };
  double factor;
  Scale scale = Scale::kElement;
  Tolerance(double factor, Scale scale = Scale::kElement)  // NOLINT: a number is a tolerance
      : factor(factor), scale(scale) {}
};
inline Tolerance of_the_whole(double factor) { return {factor, Tolerance::Scale::kWhole}; }

/// The CPU kernel with 1 and 2 threads against the reference kernel in float32 and in float64;
/// running it again must give the same bits. Outputs that are not floats must be equal.
void check_cpu(std::string_view op, const Attributes& attributes,
               const std::vector<InputSpec>& inputs, Tolerance tolerance = 1e-5,
               const RunContext& context = {});

// --- import rules ---

/// An input of an ONNX node: data (known only when it runs), a constant, or absent.
struct ImportInput {
  HostTensor value;
  bool constant = false;
};
ImportInput data(HostTensor value);
ImportInput constant(HostTensor value);
ImportInput absent();

struct Imported {
  Graph graph;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  Feeds feeds;

  /// The content of the node's outputs.
  std::vector<HostTensor> run(Backend backend = Backend::kReference,
                              const RunContext& context = {}) const;
  /// Names of the canonical operators in node order, separated by one space.
  std::string ops() const;
  /// Whether output `index` was folded into a constant.
  bool is_constant(std::size_t index = 0) const;
};

/// Builds one ONNX node through its import rule.
Imported import_node(std::string_view op_type, std::int64_t opset, const Attributes& attributes,
                     const std::vector<ImportInput>& inputs, std::size_t output_count = 1,
                     const ImportMode& mode = {});

}  // namespace pipetrain::test
