// DeformConv: a convolution with an offset for every tap. It is composed of a GridSample at the
// taps' positions, a modulation by the mask, and one matrix product per group, which provide its
// gradients (Dai et al. 2017; with mask Zhu et al. 2019).
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "graph/builder.h"
#include "ops/kernel/window.h"
#include "ops/resample/grid_sample.h"

namespace pipetrain {
namespace {

HostTensor floats(Shape shape) { return HostTensor(TensorType{DType::kFloat32, std::move(shape)}); }

/// The grid coordinate of a pixel of an axis of `extent`: not below it by rounding, or a tap
/// without an offset would have the slope of the pixels before it.
float coordinate_of(double pixel, std::int64_t extent) {
  const auto size = static_cast<float>(extent);
  auto out = static_cast<float>((2 * pixel + 1) / static_cast<double>(extent) - 1);
  const auto is_below = [&] {  // rounded once or twice, as kernels do
    const float twice = std::min((out + 1) * size - 1, std::fma(out + 1, size, -1.0F));
    return twice / 2 < static_cast<float>(pixel);
  };
  while (is_below()) out = std::nextafter(out, std::numeric_limits<float>::infinity());
  return out;
}

/// Positions of the taps without offsets, (1, 1, taps, 2, OH, OW), in grid coordinates: pixel p of
/// an axis of n pixels is (2 p + 1) / n - 1.
HostTensor tap_positions(const Window& window) {
  const WindowAxis& rows = window[0];
  const WindowAxis& columns = window[1];
  HostTensor out = floats({1, 1, rows.kernel * columns.kernel, 2, rows.output, columns.output});
  float* to = out.view().as<float>();
  for (std::int64_t tap = 0; tap < rows.kernel * columns.kernel; ++tap) {
    for (std::size_t axis = 0; axis < 2; ++axis) {
      const WindowAxis& along = window[axis];
      const std::int64_t step = axis == 0 ? tap / columns.kernel : tap % columns.kernel;
      for (std::int64_t i = 0; i < rows.output * columns.output; ++i) {
        const std::int64_t o = axis == 0 ? i / columns.output : i % columns.output;
        const auto pixel = static_cast<double>(along.start(o) + step * along.dilation);
        *to++ = coordinate_of(pixel, along.input);
      }
    }
  }
  return out;
}

}  // namespace

// x (N, C, H, W), weight (M, C / group, kh, kw), offset (N, G · taps · 2, OH, OW), bias (M),
// mask (N, G · taps, OH, OW)
void import_deform_conv(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape x = context.type(0).shape;
  const Shape w = context.type(1).shape;
  PT_CHECK(x.rank() == 4 && w.rank() == 4, kModel,
           "DeformConv of {} with {} is not supported: 2-D only", x.text(), w.text());
  const std::int64_t group = context.attributes().integer("group", 1);
  const std::int64_t fields = context.attributes().integer("offset_group", 1);
  const Shape kernel{w[2], w[3]};
  const Window window =
      make_window(import_window(context, spatial_of(x), kernel), spatial_of(x), kernel);
  const std::int64_t taps = kernel.count();
  const std::int64_t height = window[0].output, width = window[1].output;
  PT_CHECK(
      group >= 1 && fields >= 1 && w[1] * group == x[1] && w[0] % group == 0 && x[1] % fields == 0,
      kModel, "DeformConv weight {} does not fit {} with group {} and offset_group {}", w.text(),
      x.text(), group, fields);
  PT_CHECK((context.type(2).shape == Shape{x[0], fields * taps * 2, height, width}), kModel,
           "DeformConv needs offsets ({}, {}, {}, {}), got {}", x[0], fields * taps * 2, height,
           width, context.type(2).text());

  HostTensor scale = floats({1, 1, 1, 2, 1, 1});
  scale.span<float>()[0] = 2.0F / static_cast<float>(x[2]);
  scale.span<float>()[1] = 2.0F / static_cast<float>(x[3]);
  ValueId grid = builder.reshape(context.input(2), {x[0], fields, taps, 2, height, width});
  grid = builder.add("Mul", {grid, builder.constant(scale)});
  grid = builder.add("Add", {grid, builder.constant(tap_positions(window))});
  grid = builder.add("Transpose", {grid}, {{"perm", Ints{0, 1, 2, 4, 5, 3}}});
  // Grid coordinates start with the last axis.
  grid = builder.add(
      "Slice", {grid},
      {{"starts", Ints{1}}, {"ends", Ints{-1}}, {"axes", Ints{5}}, {"steps", Ints{-1}}});
  grid = builder.reshape(grid, {x[0] * fields, taps * height, width, 2});
  const ValueId images =
      builder.reshape(context.input(0), {x[0] * fields, x[1] / fields, x[2], x[3]});
  ValueId columns = builder.add("GridSample", {images, grid},
                                {{"mode", std::string("linear")},
                                 {"padding_mode", std::string("zeros")},
                                 {"align_corners", std::int64_t{0}}});
  const std::int64_t positions = height * width;
  if (context.has_input(4)) {
    columns = builder.reshape(columns, {x[0], fields, x[1] / fields, taps, positions});
    const ValueId mask = builder.reshape(context.input(4), {x[0], fields, 1, taps, positions});
    columns = builder.add("Mul", {columns, mask});
  }
  columns = builder.reshape(columns, {x[0], group, w[1] * taps, positions});
  const ValueId weights = builder.reshape(context.input(1), {group, w[0] / group, w[1] * taps});
  ValueId y = builder.add("MatMul", {weights, columns},
                          {{"trans_a", std::int64_t{0}}, {"trans_b", std::int64_t{0}}});
  y = builder.reshape(y, {x[0], w[0], height, width});
  if (context.has_input(3)) {
    y = builder.add("Add", {y, builder.reshape(context.input(3), {w[0], 1, 1})});
  }
  context.set_output(0, y);
}

}  // namespace pipetrain
