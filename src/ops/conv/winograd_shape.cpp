#include "ops/conv/winograd_shape.h"

#include <algorithm>
#include <span>
#include <utility>

namespace pipetrain {
namespace winograd {

namespace {

DepthTap depth_tap(const WindowAxis& depth, std::int64_t tap) {
  const std::int64_t first = depth.first_window(tap), last = depth.last_window(tap);
  if (last <= first) return {tap, 0, 0, 0};
  const std::int64_t slice = depth.start(first) + tap * depth.dilation;
  return {tap, slice_position(depth.input, depth.stride, slice), first, last - first};
}

}  // namespace

Pass forward(const WinogradShape& shape) {
  const WindowAxis& depth = shape.depth;
  Pass pass{shape, slots_of(shape), kOut, depth.input, depth.output, depth.stride, 1, {}};
  for (std::int64_t tap = 0; tap < depth.kernel; ++tap)
    pass.taps[static_cast<std::size_t>(tap)] = depth_tap(depth, tap);
  std::ranges::sort(std::span(pass.taps).first(static_cast<std::size_t>(depth.kernel)),
                    [](const DepthTap& a, const DepthTap& b) {
                      return a.count != b.count ? a.count > b.count : a.tap < b.tap;
                    });
  return pass;
}

Pass transposed(const WinogradShape& shape) {
  Pass pass = forward(shape);
  std::swap(pass.inputs, pass.outputs);
  std::swap(pass.height, pass.out_height);
  std::swap(pass.width, pass.out_width);
  const bool strided = shape.stride == 2;
  pass.pad_top = strided ? 0 : 2 - shape.pad_top;
  pass.pad_left = strided ? 0 : 2 - shape.pad_left;
  if (strided) pass.tile_side = 2 * kOut;
  std::swap(pass.slices_in, pass.slices_out);
  std::swap(pass.slice_stride_in, pass.slice_stride_out);
  for (DepthTap& tap : pass.taps) std::swap(tap.input, tap.output);
  return pass;
}

bool has_few_tiles(const Pass& pass) {
  const std::int64_t slices = std::max(pass.slices_in, pass.slices_out);
  // Threads share tiles otherwise: those of a volume may be fewer than the threads.
  return pass.tiles() * slices <= 64 || (slices > 1 && pass.tiles() <= 4);
}

}  // namespace winograd

std::optional<WinogradShape> winograd_shape(const ConvGeometry& geometry, std::int64_t lanes,
                                            std::int64_t least_channels) {
  if (geometry.group != 1 || geometry.window.size() < 2) return {};
  const std::span plane = std::span(geometry.window).last<2>();
  const WindowAxis &rows = plane[0], &columns = plane[1];
  const std::int64_t stride = rows.stride, dilation = rows.dilation;
  if (stride > 2 || (stride == 2 && dilation > 1)) return {};
  for (const WindowAxis& axis : plane) {
    if (axis.kernel != 3 || axis.stride != stride || axis.dilation != dilation) return {};
    if (axis.pad_begin != dilation && (axis.pad_begin != 0 || stride == 2)) return {};
    if (axis.pad_end > dilation || dilation > axis.output) return {};
  }
  for (const std::int64_t channels : {geometry.inputs, geometry.outputs}) {
    if (channels % 16 != 0 || channels < least_channels) return {};
  }
  WinogradShape shape{};
  shape.batch = geometry.batch;
  shape.inputs = geometry.inputs;
  shape.outputs = geometry.outputs;
  shape.height = rows.input;
  shape.width = columns.input;
  shape.out_height = rows.output;
  shape.out_width = columns.output;
  shape.pad_top = rows.pad_begin / dilation;
  shape.pad_left = columns.pad_begin / dilation;
  shape.lanes = lanes;
  shape.stride = stride;
  shape.dilation = dilation;
  if (geometry.window.size() == 3) shape.depth = geometry.window[0];
  if (shape.depth.kernel > winograd::kMostDepthTaps) return {};
  if (std::max(shape.depth.input, shape.depth.output) > winograd::kMostSlices) return {};
  return shape;
}

double winograd_share(const WinogradShape& shape, bool input_gradient) {
  const winograd::Pass pass = winograd::pass_of(shape, input_gradient);
  return static_cast<double>(pass.slots * pass.tiles_of_image()) /
         static_cast<double>(9 * shape.out_height * shape.out_width);
}

bool winograd_has_few_tiles(const WinogradShape& shape, bool input_gradient) {
  return winograd::has_few_tiles(winograd::pass_of(shape, input_gradient));
}

}  // namespace pipetrain
