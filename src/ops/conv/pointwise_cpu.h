// Convolutions with windows of one position between row-major feature maps: products of matrices
// (channels, positions), a sample at a time, without reordering anything. The bits do not depend on
// the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/conv/conv.h"

namespace pipetrain {

struct Pointwise {
  std::int64_t batch, inputs, outputs, positions;
};

/// The convolution in this form, where it pays: no groups, no strides, no padding, enough
/// positions.
std::optional<Pointwise> pointwise(const ConvGeometry& geometry);

/// What is the same for float and for bfloat16 numbers (std::uint16_t), whose products need
/// has_gemm_bfloat16().
template <class Element>
std::size_t pointwise_workspace_bytes(const Pointwise& shape, bool input_gradient, int threads);
/// bias may be null, and must be for bfloat16 numbers.
template <class Element>
void pointwise_forward(const Pointwise& shape, const Element* x, const Element* w,
                       const float* bias, Element* y, std::byte* workspace, int threads);
template <class Element>
void pointwise_input_gradient(const Pointwise& shape, const Element* dy, const Element* w,
                              Element* dx, std::byte* workspace, int threads);

template <class Element>
std::size_t pointwise_weight_gradient_workspace_bytes(const Pointwise& shape, int threads);
/// dw and, unless null, dbias: written, or added to what is there.
template <class Element>
void pointwise_weight_gradient(const Pointwise& shape, const Element* x, const Element* dy,
                               bool add, float* dw, float* dbias, std::byte* workspace,
                               int threads);

}  // namespace pipetrain
