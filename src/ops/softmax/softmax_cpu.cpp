// Float Softmax and LogSoftmax as vector loops. Along the last axis one row at a time stays in the
// L1 cache; along another axis a block of adjacent lines is computed in parallel.
#include <algorithm>
#include <limits>

#include "ops/kernel/element_types.h"
#include "ops/kernel/vector_math_cpu.h"
#include "ops/softmax/softmax.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 1 << 14;
constexpr std::int64_t kLines = 64;  // lines along an inner axis that are computed in parallel

template <bool kLog>
void forward_row(std::int64_t extent, const float* __restrict x, float* __restrict y) {
  float maximum = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : maximum)
  for (std::int64_t e = 0; e < extent; ++e) maximum = x[e] > maximum ? x[e] : maximum;
  float sum = 0;
  if constexpr (kLog) {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t e = 0; e < extent; ++e) {
      sum += vector_math::exp_nonpositive(x[e] - maximum);
    }
    const float log_sum = vector_math::log(sum);
#pragma omp simd
    for (std::int64_t e = 0; e < extent; ++e) y[e] = (x[e] - maximum) - log_sum;
    return;
  }
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < extent; ++e) {
    const float power = vector_math::exp_nonpositive(x[e] - maximum);
    y[e] = power;
    sum += power;
  }
  const float scale = 1.0f / sum;
#pragma omp simd
  for (std::int64_t e = 0; e < extent; ++e) y[e] *= scale;
}

template <bool kLog>
void gradient_row(std::int64_t extent, const float* __restrict dy, const float* __restrict y,
                  float* __restrict dx) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < extent; ++e) sum += kLog ? dy[e] : dy[e] * y[e];
#pragma omp simd
  for (std::int64_t e = 0; e < extent; ++e) {
    dx[e] = kLog ? dy[e] - vector_math::exp_nonpositive(y[e]) * sum : y[e] * (dy[e] - sum);
  }
}

/// `lines` adjacent lines, whose elements are `stride` apart.
template <bool kLog>
void forward_lines(std::int64_t extent, std::int64_t stride, std::int64_t lines,
                   const float* __restrict x, float* __restrict y) {
  float maximum[kLines];
  float sum[kLines] = {};
  std::copy_n(x, lines, maximum);
  for (std::int64_t e = 1; e < extent; ++e) {
#pragma omp simd
    for (std::int64_t i = 0; i < lines; ++i) {
      maximum[i] = x[e * stride + i] > maximum[i] ? x[e * stride + i] : maximum[i];
    }
  }
  for (std::int64_t e = 0; e < extent; ++e) {
#pragma omp simd
    for (std::int64_t i = 0; i < lines; ++i) {
      const float power = vector_math::exp_nonpositive(x[e * stride + i] - maximum[i]);
      if constexpr (!kLog) y[e * stride + i] = power;
      sum[i] += power;
    }
  }
#pragma omp simd
  for (std::int64_t i = 0; i < lines; ++i) {
    sum[i] = kLog ? vector_math::log(sum[i]) : 1.0f / sum[i];
  }
  for (std::int64_t e = 0; e < extent; ++e) {
#pragma omp simd
    for (std::int64_t i = 0; i < lines; ++i) {
      const std::int64_t at = e * stride + i;
      y[at] = kLog ? (x[at] - maximum[i]) - sum[i] : y[at] * sum[i];
    }
  }
}

template <bool kLog>
void gradient_lines(std::int64_t extent, std::int64_t stride, std::int64_t lines,
                    const float* __restrict dy, const float* __restrict y, float* __restrict dx) {
  float sum[kLines] = {};
  for (std::int64_t e = 0; e < extent; ++e) {
#pragma omp simd
    for (std::int64_t i = 0; i < lines; ++i) {
      const std::int64_t at = e * stride + i;
      sum[i] += kLog ? dy[at] : dy[at] * y[at];
    }
  }
  for (std::int64_t e = 0; e < extent; ++e) {
#pragma omp simd
    for (std::int64_t i = 0; i < lines; ++i) {
      const std::int64_t at = e * stride + i;
      dx[at] =
          kLog ? dy[at] - vector_math::exp_nonpositive(y[at]) * sum[i] : y[at] * (dy[at] - sum[i]);
    }
  }
}

/// Calls `row(offset)` for lines along the last axis, `lines(offset, count)` for blocks of others.
template <class Row, class Lines>
void for_each_line(const AxisView& view, Row row, Lines lines) {
  const bool parallel = view.outer * view.extent * view.inner > kParallelElements;
  if (view.inner == 1) {
#pragma omp parallel for schedule(static) if (parallel)
    for (std::int64_t outer = 0; outer < view.outer; ++outer) row(outer * view.extent);
    return;
  }
  const std::int64_t blocks = (view.inner + kLines - 1) / kLines;
#pragma omp parallel for schedule(static) if (parallel)
  for (std::int64_t index = 0; index < view.outer * blocks; ++index) {
    const std::int64_t begin = index % blocks * kLines;
    lines(index / blocks * view.extent * view.inner + begin, std::min(kLines, view.inner - begin));
  }
}

template <bool kLog>
std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel([view = view_axis(request.node.attributes, request.inputs[0].shape)](
                         std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) {
    if (view.extent == 0) return;
    const float* x = in[0].as<float>();
    float* y = out[0].as<float>();
    for_each_line(
        view, [&](std::int64_t offset) { forward_row<kLog>(view.extent, x + offset, y + offset); },
        [&](std::int64_t offset, std::int64_t lines) {
          forward_lines<kLog>(view.extent, view.inner, lines, x + offset, y + offset);
        });
  });
}

template <bool kLog>
std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [view = view_axis(request.node.attributes, request.inputs[0].shape)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const float* dy = in[0].as<float>();
        const float* y = in[1].as<float>();
        float* dx = out[0].as<float>();
        for_each_line(
            view,
            [&](std::int64_t offset) {
              gradient_row<kLog>(view.extent, dy + offset, y + offset, dx + offset);
            },
            [&](std::int64_t offset, std::int64_t lines) {
              gradient_lines<kLog>(view.extent, view.inner, lines, dy + offset, y + offset,
                                   dx + offset);
            });
      });
}

constexpr KernelEntry kKernels[] = {
    {"LogSoftmax", make_forward<true>},
    {"LogSoftmaxGrad", make_gradient<true>},
    {"Softmax", make_forward<false>},
    {"SoftmaxGrad", make_gradient<false>},
};

}  // namespace

std::span<const KernelEntry> softmax_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
