// Which convolutions Winograd's minimal filtering takes (winograd_cpu.h), and how tiles cover them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "ops/conv/conv.h"

namespace pipetrain {

/// y (batch, outputs[, slices], out_height, out_width) of x (batch, inputs[, slices], height,
/// width), both in blocks of `lanes` channels, 8 or 16. Channels are multiples of 16.
struct WinogradShape {
  std::int64_t batch, inputs, outputs;
  std::int64_t height, width;
  std::int64_t out_height, out_width;
  std::int64_t pad_top, pad_left;  // in units of the dilation: at most 1, and 1 with stride 2
  std::int64_t lanes;
  std::int64_t stride;    // 1 or 2, along both axes
  std::int64_t dilation;  // along both axes, and 1 with stride 2
  WindowAxis depth;       // of volumes; otherwise one slice and one tap
};

/// The shape of a convolution with 3x3 windows of stride 1, dilated or not, or of stride 2 behind
/// one padded position, whose channels are multiples of 16 and at least `least_channels` on both
/// sides. Volumes of up to 512 slices: the same for height and width; the depth may have any
/// stride, dilation and padding, and a kernel of up to 8.
std::optional<WinogradShape> winograd_shape(const ConvGeometry& geometry, std::int64_t lanes,
                                            std::int64_t least_channels);

/// Multiplications, as a share of those of a direct convolution: more where small feature maps fill
/// their tiles partly.
double winograd_share(const WinogradShape& shape, bool input_gradient);

/// Whether the transformed weights are the largest tensor of all, so that they are made once for
/// each use, and gathering them is a notable part of the work.
bool winograd_has_few_tiles(const WinogradShape& shape, bool input_gradient);

namespace winograd {

/// Outputs per side of a tile. An input gradient of stride 2 makes twice as many inputs per side.
constexpr std::int64_t kOut = 4;

/// Numbers of a transformed tile.
inline std::int64_t slots_of(const WinogradShape& shape) { return shape.stride == 2 ? 81 : 36; }

/// A depth tap: the slices that it multiplies, `count` input slices from position `input` and as
/// many output slices from position `output`.
struct DepthTap {
  std::int64_t tap = 0, input = 0, output = 0, count = 0;
};

/// More would need too much memory for transformed weights, and for a tile of all slices.
constexpr std::int64_t kMostDepthTaps = 8, kMostSlices = 512;

/// Position of a slice of x among the transformed ones: in order of slice mod stride, so that the
/// slices of a tap follow each other. Slices of y keep their order.
inline std::int64_t slice_position(std::int64_t slices, std::int64_t stride, std::int64_t slice) {
  const std::int64_t phase = slice % stride;
  return phase * (slices / stride) + std::min(phase, slices % stride) + slice / stride;
}

/// A pass from x to y: the forward, or with the roles exchanged the input gradient, whose paddings
/// may be 2. Of volumes `depth` remains that of the convolution. A tile covers all slices.
struct Pass : WinogradShape {
  std::int64_t slots;
  std::int64_t tile_side;  // outputs
  std::int64_t slices_in, slices_out;
  std::int64_t slice_stride_in, slice_stride_out;  // for slice_position()
  /// The first depth.kernel are used: those of most slices come first, and of none last.
  std::array<DepthTap, kMostDepthTaps> taps;

  std::span<const DepthTap> depth_taps() const {
    return std::span(taps).first(static_cast<std::size_t>(depth.kernel));
  }
  /// Whether the products of the first tap give all output slices a value.
  bool first_tap_covers_all() const { return taps[0].count == slices_out; }
  /// The largest number of slices that one product covers.
  std::int64_t slices_of_product() const { return std::max<std::int64_t>(1, taps[0].count); }
  std::int64_t tiles_along(std::int64_t outputs_along) const {
    const std::int64_t of_phase = (outputs_along + dilation - 1) / dilation;
    return (of_phase + tile_side - 1) / tile_side;
  }
  std::int64_t tile_rows() const { return tiles_along(out_height); }
  std::int64_t tile_columns() const { return tiles_along(out_width); }
  std::int64_t tiles_of_image() const { return dilation * dilation * tile_rows() * tile_columns(); }
  /// Of all images.
  std::int64_t tiles() const { return batch * tiles_of_image(); }
};

Pass forward(const WinogradShape& shape);

/// Makes the input gradient. With stride 1, dy is padded by what the window reaches beyond.
Pass transposed(const WinogradShape& shape);

inline Pass pass_of(const WinogradShape& shape, bool input_gradient) {
  return input_gradient ? transposed(shape) : forward(shape);
}

/// So few that going over all tiles once per panel costs less than writing all weights.
bool has_few_tiles(const Pass& pass);

}  // namespace winograd
}  // namespace pipetrain
