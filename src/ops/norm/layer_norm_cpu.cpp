// Float LayerNorm as vector loops over rows that stay in the L1 cache.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "ops/kernel/element_types.h"
#include "ops/norm/layer_norm.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 1 << 14;
using Geometry = LayerNormGeometry;

struct RowStatistics {
  float mean;
  float inverse_std;
};

RowStatistics row_statistics(const float* x, std::int64_t width, float epsilon) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(width);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon)};
}

void normalise_row(const float* __restrict x, RowStatistics row, const float* __restrict scale,
                   const float* __restrict bias, float* __restrict y, std::int64_t width) {
  const float mean = row.mean, inverse = row.inverse_std;  // OpenMP takes no bindings
  if (scale && bias) {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * inverse * scale[i] + bias[i];
    return;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * inverse;
  if (scale) {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) y[i] *= scale[i];
  }
  if (bias) {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) y[i] += bias[i];
  }
}

void forward(const Geometry& geometry, std::span<const Tensor> in, std::span<const Tensor> out) {
  const std::int64_t width = geometry.width;
  const float* x = in[0].as<float>();
  const float* scale = data_or_null<float>(in, 1);
  const float* bias = data_or_null<float>(in, 2);
  float* y = out[0].as<float>();
  float* means = data_or_null<float>(out, 1);
  float* inverses = data_or_null<float>(out, 2);
  const auto epsilon = static_cast<float>(geometry.epsilon);
#pragma omp parallel for schedule(static) if (geometry.rows * width > kParallelElements)
  for (std::int64_t row = 0; row < geometry.rows; ++row) {
    const RowStatistics statistics = row_statistics(x + row * width, width, epsilon);
    if (means) means[row] = statistics.mean;
    if (inverses) inverses[row] = statistics.inverse_std;
    if (y) normalise_row(x + row * width, statistics, scale, bias, y + row * width, width);
  }
}

template <bool kScaled>
void input_gradient_row(const float* __restrict dy, const float* __restrict x,
                        const float* __restrict scale, RowStatistics row, float* __restrict dx,
                        std::int64_t width) {
  const float mean = row.mean, inverse = row.inverse_std;  // OpenMP takes no bindings
  float sum = 0;
  float weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = kScaled ? dy[i] * scale[i] : dy[i];
    sum += g;
    weighted += g * (x[i] - mean);
  }
  const float share = inverse * sum / static_cast<float>(width);
  const float slope = inverse * inverse * inverse * weighted / static_cast<float>(width);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = kScaled ? dy[i] * scale[i] : dy[i];
    dx[i] = inverse * g - share - (x[i] - mean) * slope;
  }
}

void input_gradient(const Geometry& geometry, std::span<const Tensor> in,
                    std::span<const Tensor> out) {
  const std::int64_t width = geometry.width;
  const float* scale = in[2].as<float>();
#pragma omp parallel for schedule(static) if (geometry.rows * width > kParallelElements)
  for (std::int64_t row = 0; row < geometry.rows; ++row) {
    const RowStatistics statistics = {in[3].as<float>()[row], in[4].as<float>()[row]};
    const float* dy = in[0].as<float>() + row * width;
    const float* x = in[1].as<float>() + row * width;
    float* dx = out[0].as<float>() + row * width;
    scale ? input_gradient_row<true>(dy, x, scale, statistics, dx, width)
          : input_gradient_row<false>(dy, x, scale, statistics, dx, width);
  }
}

constexpr std::int64_t kColumns = 256;  // columns that one thread sums at a time
constexpr std::int64_t kRowBlock = 64;  // rows summed in float before they are added to the total

/// Columns [begin, begin + count) of both sums. Summing blocks of rows reduces the rounding error
/// to the square root of that of one long sum.
void weight_gradient_columns(const Geometry& geometry, std::span<const Tensor> in, float* dscale,
                             float* dbias, std::int64_t begin, std::int64_t count) {
  const float* means = in[2].as<float>();
  const float* inverses = in[3].as<float>();
  float scale_total[kColumns] = {};
  float bias_total[kColumns] = {};
  for (std::int64_t first = 0; first < geometry.rows; first += kRowBlock) {
    float scale_sum[kColumns] = {};
    float bias_sum[kColumns] = {};
    for (std::int64_t row = first; row < std::min(first + kRowBlock, geometry.rows); ++row) {
      const float* __restrict dy = in[0].as<float>() + row * geometry.width + begin;
      const float* __restrict x = in[1].as<float>() + row * geometry.width + begin;
      const float mean = means[row];
      const float inverse = inverses[row];
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        scale_sum[i] += dy[i] * ((x[i] - mean) * inverse);
        bias_sum[i] += dy[i];
      }
    }
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      scale_total[i] += scale_sum[i];
      bias_total[i] += bias_sum[i];
    }
  }
  if (dscale) std::copy_n(scale_total, count, dscale + begin);
  if (dbias) std::copy_n(bias_total, count, dbias + begin);
}

void weight_gradient(const Geometry& geometry, std::span<const Tensor> in,
                     std::span<const Tensor> out) {
  float* dscale = out[0].as<float>();
  float* dbias = data_or_null<float>(out, 1);
  const std::int64_t share = (geometry.width + omp_get_max_threads() - 1) / omp_get_max_threads();
  const std::int64_t columns = std::min(kColumns, (share + 15) / 16 * 16);
  const std::int64_t blocks = (geometry.width + columns - 1) / columns;
#pragma omp parallel for schedule(static) if (geometry.rows * geometry.width > kParallelElements)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t begin = block * columns;
    weight_gradient_columns(geometry, in, dscale, dbias, begin,
                            std::min(columns, geometry.width - begin));
  }
}

using Run = void (*)(const Geometry&, std::span<const Tensor>, std::span<const Tensor>);

template <Run run, std::size_t x_index>
std::unique_ptr<Kernel> make(const KernelRequest& request) {
  const TensorType& x = request.inputs[x_index];
  if (!is_row_major(request) || x.dtype != DType::kFloat32) return nullptr;
  return make_kernel([geometry = layer_norm_geometry(request.node.attributes, x.shape)](
                         std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) { run(geometry, in, out); });
}

constexpr KernelEntry kKernels[] = {
    {"LayerNorm", make<forward, 0>},
    {"LayerNormInputGrad", make<input_gradient, 1>},
    {"LayerNormWeightGrad", make<weight_gradient, 1>},
};

}  // namespace

std::span<const KernelEntry> layer_norm_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
