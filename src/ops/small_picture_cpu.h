// Convolutions of pictures with fewer positions than half the window has taps (2x2 pictures under
// 3x3 windows at the end of VGG): most of the window lies on padding. Every output then depends on
// every input, so the convolution is one product with a matrix that holds each weight where it
// acts:
//
//   y (batch, outputs x positions) = x (batch, inputs x positions) W
//
// Tensors are channel-blocked (nChw8c), which makes x and y such matrices as they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/conv.h"

namespace pipetrain {

struct SmallPicture {
  std::int64_t batch, inputs, outputs;
  std::int64_t in_positions, out_positions, taps;
  /// Of output position p and input position q at p * in_positions + q: the tap, -1 for none.
  std::vector<std::int64_t> tap;

  std::int64_t x_width() const { return inputs * in_positions; }
  std::int64_t y_width() const { return outputs * out_positions; }
};

/// The convolution in this form, if that pays: no groups, channels in whole blocks of 8, enough
/// samples to be worth the matrix.
std::optional<SmallPicture> small_picture(const ConvGeometry& geometry);

std::size_t small_picture_workspace_bytes(const SmallPicture& shape, int threads);

/// w: (outputs, inputs, taps…); bias may be null.
void small_picture_forward(const SmallPicture& shape, const float* x, const float* w,
                           const float* bias, float* y, std::byte* workspace, int threads);
void small_picture_input_gradient(const SmallPicture& shape, const float* dy, const float* w,
                                  float* dx, std::byte* workspace, int threads);
/// dbias may be null.
void small_picture_weight_gradient(const SmallPicture& shape, const float* x, const float* dy,
                                   float* dw, float* dbias, std::byte* workspace, int threads);

}  // namespace pipetrain
