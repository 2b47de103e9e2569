// Tensors in channel-blocked layouts and with channels last, for tests of kernels that accept them.
#pragma once

#include <string_view>
#include <vector>

#include "graph/attributes.h"
#include "tensor/tensor.h"

namespace pipetrain::test {

/// The type in this layout; in row-major layout where the channels do not fill whole blocks.
TensorType in_layout(TensorType type, Layout layout);
/// The same tensor (N, C, …) with its elements rearranged, by an index computation of its own.
HostTensor to_layout(const HostTensor& tensor, Layout layout);
/// The same tensor with padded rows, the padding all ones (NaN), and back.
HostTensor with_padded_rows(const HostTensor& tensor);
HostTensor without_padding(const HostTensor& tensor);
/// Runs one canonical operator on the CPU with these output types instead of the inferred ones.
std::vector<HostTensor> run_in_layouts(std::string_view op, const Attributes& attributes,
                                       const std::vector<HostTensor>& inputs,
                                       const std::vector<TensorType>& outputs);

}  // namespace pipetrain::test
