// Which convolutions Winograd's minimal filtering takes (winograd_cpu.h), and how tiles cover them.
#pragma once

#include <cstdint>
#include <optional>

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
  WindowAxis depth;       // of volumes: any window of slices, each 3x3; otherwise one slice
};

/// The shape of a convolution with 3x3 windows of stride 1, dilated or not, or of stride 2 behind
/// one padded position, whose channels are multiples of 16 and at least `least_channels` on both
/// sides. Of a volume that holds for the last two axes; windows along the first are free.
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

/// Slices of both sides of a convolution that one slice of the window brings together: `count` from
/// position `input` and from position `output` on.
struct SliceRun {
  std::int64_t input, output, count;
};

/// Where slice `slice` of the convolution's input lies among the others: those that the same slice
/// of the window meets follow each other. Slices of its output keep their order.
inline std::int64_t slice_position(const WindowAxis& depth, std::int64_t slice) {
  const std::int64_t of_phase = (depth.input + depth.stride - 1) / depth.stride;
  return slice % depth.stride * of_phase + slice / depth.stride;
}

SliceRun slice_run(const WindowAxis& depth, std::int64_t tap);

/// The positions of the convolution's input slices, some of which may be empty.
inline std::int64_t slice_positions(const WindowAxis& depth) {
  return (depth.input + depth.stride - 1) / depth.stride * depth.stride;
}

/// The slices of the window, beginning with the middle one, which meets most.
inline std::int64_t tap_in_order(const WindowAxis& depth, std::int64_t index) {
  return (depth.kernel / 2 + index) % depth.kernel;
}

/// A pass from x to y: the forward, or with the roles exchanged the input gradient, whose paddings
/// may be 2. A tile has its transformed numbers in all slices.
struct Pass : WinogradShape {
  std::int64_t slots;
  std::int64_t tile_side;  // outputs
  bool is_transposed;

  std::int64_t slices_in() const { return is_transposed ? depth.output : slice_positions(depth); }
  std::int64_t slices_out() const { return is_transposed ? slice_positions(depth) : depth.output; }
  /// The slices of the pass's input and output, and how they lie.
  WindowAxis depth_in() const { return is_transposed ? WindowAxis{depth.output} : depth; }
  WindowAxis depth_out() const { return is_transposed ? depth : WindowAxis{depth.output}; }
  /// Slices that a slice of the window brings together, of the pass's input and output.
  SliceRun run_of(std::int64_t tap) const;
  std::int64_t tiles_along(std::int64_t outputs_along) const {
    const std::int64_t of_phase = (outputs_along + dilation - 1) / dilation;
    return (of_phase + tile_side - 1) / tile_side;
  }
  std::int64_t tile_rows() const { return tiles_along(out_height); }
  std::int64_t tile_columns() const { return tiles_along(out_width); }
  std::int64_t tiles_of_image() const { return dilation * dilation * tile_rows() * tile_columns(); }
  /// Of one slice.
  std::int64_t tiles() const { return batch * tiles_of_image(); }
};

Pass forward(const WinogradShape& shape);

/// Makes the input gradient. With stride 1, dy is padded by what the window reaches beyond.
Pass transposed(const WinogradShape& shape);

/// So few that going over all tiles once per panel costs less than writing all weights.
bool has_few_tiles(const Pass& pass);

}  // namespace winograd
}  // namespace pipetrain
