// Checks of a GPU kernel on operands of any size, in float32, bfloat16 and float16.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "tensor/tensor.h"

namespace pipetrain::test {

/// A float32 tensor rounded to this type; others stay.
HostTensor stored_as(const HostTensor& wide, DType dtype);

struct RowCase {
  std::string op;
  Attributes attributes;
  std::vector<HostTensor> inputs;  // listed inputs are rounded to `stored`
  std::vector<std::size_t> narrow = {0};
  std::vector<std::size_t> narrow_results = {0};
  double tolerance = 1e-5;
  std::size_t shift = 0;
  std::size_t most_results = 8;  // the others are not asked for
};

/// The kernel's results, which must not depend on the order of threads; nothing without a kernel.
/// Writes beyond results and workspace are failures. Inputs and results begin `shift` bytes after
/// aligned addresses.
std::vector<HostTensor> run_on_gpu(const Node& node, const std::vector<HostTensor>& inputs,
                                   const std::vector<TensorType>& outputs, std::size_t shift = 0);

/// In float32, bfloat16 and float16, against the reference kernel on the rounded inputs.
void check_on_gpu(const RowCase& c);

}  // namespace pipetrain::test
