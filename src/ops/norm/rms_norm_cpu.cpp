// Float RmsNorm as vector loops over rows that stay in the L1 cache. The gradient of the scale is
// summed column block by column block, in the order of the rows.
#include <algorithm>
#include <cmath>

#include "ops/kernel/element_types.h"
#include "ops/norm/rms_norm.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;
constexpr std::int64_t kParallelElements = 1 << 14;
constexpr std::int64_t kColumns = 64;  // whose sums stay in registers and the L1 cache

void forward(const LayerNormGeometry& g, Tensors in, Tensors out) {
  const float* scale = data_or_null<float>(in, 1);
  float* inverses = data_or_null<float>(out, 1);
  float* all = out[0].as<float>();
#pragma omp parallel for schedule(static) if (g.rows * g.width > kParallelElements)
  for (std::int64_t row = 0; row < g.rows; ++row) {
    const float* __restrict x = in[0].as<float>() + row * g.width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < g.width; ++i) squares += x[i] * x[i];
    const float inverse =
        1.0f / std::sqrt(squares / static_cast<float>(g.width) + static_cast<float>(g.epsilon));
    if (inverses) inverses[row] = inverse;
    if (!all) continue;
    float* __restrict y = all + row * g.width;
#pragma omp simd
    for (std::int64_t i = 0; i < g.width; ++i) y[i] = x[i] * inverse;
    if (!scale) continue;
#pragma omp simd
    for (std::int64_t i = 0; i < g.width; ++i) y[i] *= scale[i];
  }
}

void input_gradient(const LayerNormGeometry& g, Tensors in, Tensors out) {
  const float* __restrict scale = data_or_null<float>(in, 2);
#pragma omp parallel for schedule(static) if (g.rows * g.width > kParallelElements)
  for (std::int64_t row = 0; row < g.rows; ++row) {
    const float* __restrict dy = in[0].as<float>() + row * g.width;
    const float* __restrict x = in[1].as<float>() + row * g.width;
    float* __restrict dx = out[0].as<float>() + row * g.width;
    const float inverse = in[3].as<float>()[row];
    float sum = 0;
    if (scale) {
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < g.width; ++i) {
        dx[i] = dy[i] * scale[i];
        sum += dx[i] * x[i];
      }
    } else {
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < g.width; ++i) {
        dx[i] = dy[i];
        sum += dx[i] * x[i];
      }
    }
    const float factor = sum / static_cast<float>(g.width) * inverse * inverse;
#pragma omp simd
    for (std::int64_t i = 0; i < g.width; ++i) dx[i] = inverse * (dx[i] - x[i] * factor);
  }
}

void weight_gradient(const LayerNormGeometry& g, Tensors in, Tensors out) {
  const float* inverses = in[2].as<float>();
  const std::int64_t blocks = (g.width + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(static) if (g.rows * g.width > kParallelElements)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = block * kColumns;
    const std::int64_t count = std::min(kColumns, g.width - first);
    float sum[kColumns] = {};
    for (std::int64_t row = 0; row < g.rows; ++row) {
      const float* __restrict dy = in[0].as<float>() + row * g.width + first;
      const float* __restrict x = in[1].as<float>() + row * g.width + first;
      const float inverse = inverses[row];
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) sum[i] += dy[i] * x[i] * inverse;
    }
    std::copy_n(sum, count, out[0].as<float>() + first);
  }
}

template <auto kRun, std::size_t kInput>
std::unique_ptr<Kernel> make(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[kInput].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [g = layer_norm_geometry(request.node.attributes, request.inputs[kInput].shape)](
          Tensors in, Tensors out, const RunContext&) { kRun(g, in, out); });
}

constexpr KernelEntry kKernels[] = {
    {"RmsNorm", make<forward, 0>},
    {"RmsNormInputGrad", make<input_gradient, 1>},
    {"RmsNormWeightGrad", make<weight_gradient, 1>},
};

}  // namespace

std::span<const KernelEntry> rms_norm_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
