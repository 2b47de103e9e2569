#include "ops/conv/tile_image_cpu.h"

#include <omp.h>

#include <algorithm>
#include <array>

#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/workspace.h"

namespace pipetrain {
namespace {

using tiles::kSide;
using Bits = std::uint16_t;  // of a bfloat16

/// How far the first tap of a window stands behind a multiple of the stride.
std::int64_t shift_of(const WindowAxis& axis) {
  return (axis.stride - axis.pad_begin % axis.stride) % axis.stride;
}

/// Windows of stride 1 over every `stride`-th position.
WindowAxis inner_axis(const WindowAxis& axis) {
  const std::int64_t shift = shift_of(axis);
  WindowAxis out;
  out.input = (axis.input + axis.stride - 1) / axis.stride;
  out.kernel = (axis.kernel + shift + axis.stride - 1) / axis.stride;
  out.pad_begin = (axis.pad_begin + shift) / axis.stride;
  out.output = axis.output;
  return out;
}

/// x (N, C, H, W) to blocks of 16 channels: (row in the stride, column in the stride, channel),
/// then zeros.
void spread_image(const TileImage& shape, const Bits* x, Bits* map, int threads) {
  const WindowAxis &rows = shape.rows, &columns = shape.columns;
  const std::int64_t down = shape.inner.rows.input, across = shape.inner.columns.input;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t line = 0; line < shape.inner.batch * down; ++line) {
    Bits* const to = map + line * across * kSide;
    std::fill_n(to, across * kSide, Bits{0});
    const std::int64_t sample = line / down, first = line % down * rows.stride;
    for (std::int64_t r = 0; r < std::min(rows.stride, rows.input - first); ++r) {
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        const Bits* from =
            x + ((sample * shape.channels + c) * rows.input + first + r) * columns.input;
        for (std::int64_t s = 0; s < columns.stride; ++s) {
          Bits* const lane = to + (r * columns.stride + s) * shape.channels + c;
          const std::int64_t count = (columns.input - s + columns.stride - 1) / columns.stride;
          for (std::int64_t i = 0; i < count; ++i) lane[i * kSide] = from[i * columns.stride + s];
        }
      }
    }
  }
}

/// Calls body(index in w, index in the weights of the inner convolution) for all of w.
template <class Body>
void for_each_weight(const TileImage& shape, Body body) {
  const WindowAxis &rows = shape.rows, &columns = shape.columns;
  const std::int64_t down = shift_of(rows), across = shift_of(columns);
  std::int64_t index = 0;
  for (std::int64_t o = 0; o < shape.inner.outputs; ++o) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      for (std::int64_t row = down; row < rows.kernel + down; ++row) {
        for (std::int64_t column = across; column < columns.kernel + across; ++column, ++index) {
          const std::int64_t lane =
              (row % rows.stride * columns.stride + column % columns.stride) * shape.channels + c;
          const std::int64_t tap =
              row / rows.stride * shape.inner.columns.kernel + column / columns.stride;
          body(index, (o * kSide + lane) * shape.inner.taps() + tap);
        }
      }
    }
  }
}

/// Memory behind the workspace of the inner kernel.
class Places {
 public:
  Places(const TileImage& shape, const Kernel& inner, std::size_t weight)
      : map_(aligned_part(inner.workspace_bytes())),
        weights_(map_ +
                 aligned_part(static_cast<std::size_t>(map_type(shape).count()) * sizeof(Bits))),
        end_(weights_ + aligned_part(static_cast<std::size_t>(weight_count(shape)) * weight)) {}

  static TensorType map_type(const TileImage& shape) {
    const TileConvolution& inner = shape.inner;
    return {DType::kBFloat16, Shape{inner.batch, kSide, inner.rows.input, inner.columns.input},
            Layout::kBlocked16};
  }
  static Shape weight_shape(const TileImage& shape) {
    return {shape.inner.outputs, kSide, shape.inner.rows.kernel, shape.inner.columns.kernel};
  }
  static std::int64_t weight_count(const TileImage& shape) { return weight_shape(shape).count(); }

  std::byte* map(std::byte* workspace) const { return workspace + map_; }
  std::byte* weights(std::byte* workspace) const { return workspace + weights_; }
  std::size_t bytes() const { return end_; }

 private:
  std::size_t map_, weights_, end_;
};

class ImageForward final : public Kernel {
 public:
  ImageForward(const TileImage& shape, const tiles::Instructions& instructions)
      : shape_(shape),
        inner_(make_tile_pass(shape.inner, /*input_gradient=*/false, instructions)),
        places_(shape, *inner_, sizeof(Bits)),
        inputs_{{{Places::map_type(shape)}, {{DType::kBFloat16, Places::weight_shape(shape)}}, {}}},
        threads_(omp_get_max_threads()) {}

  std::size_t workspace_bytes() const override { return places_.bytes(); }
  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    auto& [map, weights, bias] = inputs_;
    map.data = places_.map(context.workspace);
    weights.data = places_.weights(context.workspace);
    bias.data = in.size() > 2 ? in[2].data : nullptr;
    spread_image(shape_, in[0].as<Bits>(), map.as<Bits>(), threads_);
    auto* const to = weights.as<Bits>();
    const auto* const from = in[1].as<Bits>();
    std::fill_n(to, weights.count(), Bits{0});
    for_each_weight(shape_, [&](std::int64_t w, std::int64_t inner) { to[inner] = from[w]; });
    inner_->run(inputs_, out, context);
  }

 private:
  TileImage shape_;
  std::unique_ptr<Kernel> inner_;
  Places places_;
  std::array<Tensor, 3> inputs_;  // of inner_: map, weights, bias
  int threads_;
};

class ImageWeightGradient final : public AddingKernel {
 public:
  ImageWeightGradient(const TileImage& shape, const tiles::Instructions& instructions)
      : shape_(shape),
        inner_(make_tile_weight_gradient(shape.inner, instructions)),
        places_(shape, *inner_, sizeof(float)),
        inputs_{{{Places::map_type(shape)}, {}}},
        weights_{{DType::kFloat32, Places::weight_shape(shape)}},
        threads_(omp_get_max_threads()) {}

  std::size_t workspace_bytes() const override { return places_.bytes(); }
  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    make(in, out, context, /*add=*/false);
  }
  void run_adding(std::span<const Tensor> in, std::span<const Tensor> out,
                  const RunContext& context) override {
    make(in, out, context, /*add=*/true);
  }

 private:
  void make(std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
            bool add) {
    auto& [map, dy] = inputs_;
    map.data = places_.map(context.workspace);
    dy.data = in[1].data;
    weights_.data = places_.weights(context.workspace);
    spread_image(shape_, in[0].as<Bits>(), map.as<Bits>(), threads_);
    inner_->run(inputs_, {&weights_, 1}, context);
    const auto* const from = weights_.as<float>();
    auto* const to = out[0].as<float>();
    for_each_weight(shape_, [&](std::int64_t w, std::int64_t inner) {
      to[w] = add ? to[w] + from[inner] : from[inner];
    });
  }

  TileImage shape_;
  std::unique_ptr<Kernel> inner_;
  Places places_;
  std::array<Tensor, 2> inputs_;  // of inner_: map, dy
  Tensor weights_;                // their gradients by inner_
  int threads_;
};

}  // namespace

std::optional<TileImage> tile_image(const ConvGeometry& geometry) {
  if (geometry.group != 1 || geometry.window.size() != 2 || geometry.outputs % kSide != 0)
    return {};
  const WindowAxis &rows = geometry.window[0], &columns = geometry.window[1];
  if (rows.dilation != 1 || columns.dilation != 1) return {};
  const std::int64_t lanes = geometry.inputs * rows.stride * columns.stride;
  if (lanes > kSide || 2 * lanes < kSide || geometry.inputs == kSide) return {};
  const TileConvolution inner{geometry.batch, kSide, geometry.outputs, inner_axis(rows),
                              inner_axis(columns)};
  return TileImage{inner, geometry.inputs, rows, columns};
}

std::unique_ptr<Kernel> make_tile_image_forward(const TileImage& shape,
                                                const tiles::Instructions& instructions) {
  return std::make_unique<ImageForward>(shape, instructions);
}

std::unique_ptr<Kernel> make_tile_image_weight_gradient(const TileImage& shape,
                                                        const tiles::Instructions& instructions) {
  return std::make_unique<ImageWeightGradient>(shape, instructions);
}

}  // namespace pipetrain
