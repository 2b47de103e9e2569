#include "ops/conv/split_pointwise_cpu.h"

#include <omp.h>

#include <algorithm>

#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/gemm_split_cpu.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLanes = LineMap::kBlock;

/// The positions of y in all samples: of x with the window's strides, or of y.
class Positions final : public LineMap {
 public:
  Positions(const SplitPointwise& shape, bool of_x)
      : rows_(shape.rows.output), columns_(shape.columns.output) {
    const std::int64_t width = of_x ? shape.columns.input : columns_;
    const std::int64_t height = of_x ? shape.rows.input : rows_;
    column_step_ = kLanes * (of_x ? shape.columns.stride : 1);
    row_step_ = kLanes * width * (of_x ? shape.rows.stride : 1);
    block_step_ = kLanes * width * height;
    sample_step_ = width * height * (of_x ? shape.inputs : shape.outputs);
  }

  void locate(std::int64_t first, std::int64_t count, std::int64_t block,
              std::int64_t* offsets) const override {
    std::int64_t column = first % columns_, row = first / columns_ % rows_;
    std::int64_t at = first / (columns_ * rows_) * sample_step_ + row * row_step_ +
                      column * column_step_ + block * block_step_;
    for (std::int64_t i = 0; i < count; ++i) {
      offsets[i] = at;
      at += column_step_;
      if (++column < columns_) continue;
      column = 0;
      at += row_step_ - columns_ * column_step_;
      if (++row < rows_) continue;
      row = 0;
      at += sample_step_ - rows_ * row_step_;
    }
  }

 private:
  std::int64_t rows_, columns_, column_step_, row_step_, block_step_, sample_step_;
};

std::int64_t positions_of(const SplitPointwise& shape) {
  return shape.batch * shape.rows.output * shape.columns.output;
}
GemmShape forward_shape(const SplitPointwise& shape) {
  return {positions_of(shape), shape.outputs, shape.inputs};
}
GemmShape input_shape(const SplitPointwise& shape) {
  return {positions_of(shape), shape.inputs, shape.outputs};
}
GemmShape weight_shape(const SplitPointwise& shape) {
  return {shape.outputs, shape.inputs, positions_of(shape)};
}

}  // namespace

std::optional<SplitPointwise> split_pointwise(const ConvGeometry& geometry) {
  if (geometry.group != 1 || geometry.window.size() != 2) return {};
  for (const WindowAxis& axis : geometry.window) {
    if (axis.kernel != 1 || axis.pad_begin != 0 || axis.pad_end != 0) return {};
  }
  const SplitPointwise shape{geometry.batch, geometry.inputs, geometry.outputs, geometry.window[0],
                             geometry.window[1]};
  const bool whole = shape.inputs % kLanes == 0 && shape.outputs % kLanes == 0;
  if (!whole || !gemm_splits(forward_shape(shape)) || !gemm_splits(input_shape(shape))) return {};
  return shape;
}

std::unique_ptr<Kernel> make_split_forward(const SplitPointwise& shape) {
  const int threads = omp_get_max_threads();
  const Positions x(shape, /*of_x=*/true), y(shape, /*of_x=*/false);
  const EvenLines w(shape.inputs);
  const GemmShape product = forward_shape(shape);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        gemm_split(product, {in[0].as<float>(), &x, false}, {in[1].as<float>(), &w, false},
                   data_or_null<float>(in, 2), /*add=*/false, {out[0].as<float>(), &y},
                   context.workspace, threads);
      },
      gemm_split_workspace_bytes(product, threads));
}

std::unique_ptr<Kernel> make_split_input_gradient(const SplitPointwise& shape) {
  const int threads = omp_get_max_threads();
  const Positions x(shape, /*of_x=*/true), y(shape, /*of_x=*/false);
  const EvenLines w(shape.inputs);
  const GemmShape product = input_shape(shape);
  const bool skips = shape.rows.stride > 1 || shape.columns.stride > 1;
  const std::int64_t rows = shape.batch * shape.inputs * shape.rows.input;
  const std::int64_t width = shape.columns.input;
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        auto* const dx = out[0].as<float>();
        if (skips) {
#pragma omp parallel for schedule(static) num_threads(threads)
          for (std::int64_t row = 0; row < rows; ++row) std::fill_n(dx + row * width, width, 0.0F);
        }
        gemm_split(product, {in[0].as<float>(), &y, false}, {in[1].as<float>(), &w, true}, nullptr,
                   /*add=*/false, {dx, &x}, context.workspace, threads);
      },
      gemm_split_workspace_bytes(product, threads));
}

std::unique_ptr<Kernel> make_split_weight_gradient(const SplitPointwise& shape) {
  const int threads = omp_get_max_threads();
  const Positions x(shape, /*of_x=*/true), y(shape, /*of_x=*/false);
  const EvenLines w(shape.inputs);
  const GemmShape product = weight_shape(shape);
  const std::int64_t count = shape.outputs * shape.inputs;
  const std::size_t sums_bytes = static_cast<std::size_t>(count) * sizeof(float);
  return make_adding_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
          bool add) {
        auto* const dw = out[0].as<float>();
        auto* const sums = add ? reinterpret_cast<float*>(context.workspace) : dw;
        gemm_split(product, {in[1].as<float>(), &y, true}, {in[0].as<float>(), &x, true}, nullptr,
                   /*add=*/false, {sums, &w}, context.workspace + sums_bytes, threads);
        for (std::int64_t i = 0; add && i < count; ++i) dw[i] += sums[i];
      },
      sums_bytes + gemm_split_workspace_bytes(product, threads));
}

}  // namespace pipetrain
