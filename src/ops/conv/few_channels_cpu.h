// Convolutions of stride 1 with a few channels, as at the beginning of networks for grey images:
// too few to fill a vector with, so vectors run along the rows of the feature map.
#pragma once

#include <cstddef>
#include <optional>

#include "ops/conv/conv.h"

namespace pipetrain {

/// Row-major x (batch, inputs, height, width), w (outputs, inputs, kernel_rows, kernel) and
/// y (batch, outputs, out_height, out_width).
struct FewChannels {
  std::int64_t batch, inputs, outputs;
  std::int64_t height, width;
  std::int64_t kernel_rows, kernel;
  std::int64_t pad_top, pad_left;
  std::int64_t out_height, out_width;
};

/// The shape, where these kernels are for it.
std::optional<FewChannels> few_channels(const ConvGeometry& geometry);

/// Workspace of the two below for up to `threads` threads.
std::size_t few_channels_workspace_bytes(const FewChannels& shape, int threads);

/// y = x * w (+ bias, unless null).
void few_channels_forward(const FewChannels& shape, const float* x, const float* w,
                          const float* bias, float* y, std::byte* workspace, int threads);
/// dw and, unless null, dbias.
void few_channels_weight_gradient(const FewChannels& shape, const float* x, const float* dy,
                                  float* dw, float* dbias, std::byte* workspace, int threads);

}  // namespace pipetrain
