// Convolutions with 3x3 windows of stride 1 or 2 by Winograd's minimal filtering (Lavin and Gray
// 2016). With AVX-512 and blocks of 16 channels the vectors have 16 floats, otherwise 8. Tensors
// are channel-blocked (nChw8c or nChw16c), weights row-major.
//
//   y = A' [ (G w G') * (B' x B) ] A      per tile of 4x4 outputs
//
// Stride 1 is F(4x4, 3x3): 36 multiplications where a direct convolution takes 144. The
// interpolation points are 0, ±5/8, ±3/2 and ∞: exact in binary, and with the smallest rounding
// error of those tried (rms 8e-7 of the result, with 64 channels as with 512).
//
// Stride 2 takes 81 of 144 multiplications: along each axis the even inputs of 9 meet the outer two
// of three weights by F(4, 2) with points ±1/2, ±5/4 and ∞ (rms 6e-7), the odd ones the middle
// weight directly. The input gradient makes 8x8 inputs of a tile of 5x5 gradients in the same way.
//
// For volumes each slice is transformed once; products are summed over the depth taps before the
// output transform.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/conv/packed_convolution_cpu.h"
#include "ops/conv/winograd_shape.h"

namespace pipetrain {

/// Workspace of the three below for as many threads as they are told; OpenMP may start fewer. With
/// many tiles it holds all transformed weights, four times as many floats as there are weights. A
/// weight gradient of few channels has their sums once for each range of tiles, up to 64 times.
std::size_t winograd_workspace_bytes(const WinogradShape& shape, bool input_gradient, int threads);
std::size_t winograd_weight_gradient_workspace_bytes(const WinogradShape& shape, int threads);

/// y = x * w (+ bias, unless null). w: (outputs, inputs[, slices], 3, 3). Element: float, or
/// BFloat16 for what is stored so; all arithmetic is float's.
template <class Element>
void winograd_forward(const WinogradShape& shape, const Element* x,
                      const ConvolutionWeights<Element>& w, const float* bias, Element* y,
                      std::byte* workspace, int threads);
/// dx of dy; `shape` is the forward's.
template <class Element>
void winograd_input_gradient(const WinogradShape& shape, const Element* dy,
                             const ConvolutionWeights<Element>& w, Element* dx,
                             std::byte* workspace, int threads);
/// dw and, unless null, dbias: written, or added to what is there.
template <class Element>
void winograd_weight_gradient(const WinogradShape& shape, const Element* x, const Element* dy,
                              bool add, float* dw, float* dbias, std::byte* workspace, int threads);

}  // namespace pipetrain
