// Batch normalization: one block per channel, or per 32 channels with channels last.
#include <cmath>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/norm/batch_norm_launch_cuda.h"

namespace pipetrain::batch_norm {
namespace {

/// The offset of element i of a channel.
__device__ __forceinline__ std::int64_t element_of(const Channels& s, std::int64_t channel,
                                                   std::int64_t i) {
  if (s.channels_last) return i * s.channels + channel;
  return (i / s.positions * s.channels + channel) * s.positions + i % s.positions;
}

/// How threads are assigned to channels. Row-major: one channel per block. Channels last: 32
/// adjacent channels per block, each warp at other positions, so that loads are coalesced.
template <bool kLast>
struct Share {
  std::int64_t channel, first, step;
  bool any;  // of this thread

  __device__ explicit Share(const Channels& s)
      : channel(kLast ? std::int64_t{blockIdx.x} * 32 + threadIdx.x % 32 : blockIdx.x),
        first(kLast ? threadIdx.x / 32 : threadIdx.x),
        step(kLast ? kBlock / 32 : kBlock),
        any(channel < s.channels) {
    if (!any) channel = 0;
  }
  /// Sums over all threads of a channel; all threads of the block must call it.
  __device__ float sum(float value) const {
    if constexpr (kLast) {
      __shared__ float parts[kBlock];
      __syncthreads();  // slower threads may still read the parts of the last call
      parts[threadIdx.x] = value;
      __syncthreads();
      value = 0;
      for (int warp = 0; warp < kBlock / 32; ++warp) value += parts[warp * 32 + threadIdx.x % 32];
      return value;
    } else {
      return over_block<kBlock>(value, SumOf());
    }
  }
};

template <bool kLast>
__global__ void batch_norm(Channels s, bool training, ConstFloatView x, ConstFloatView scale,
                           ConstFloatView bias, ConstFloatView given_means,
                           ConstFloatView given_variances, FloatView means, FloatView variances,
                           FloatView y) {
  const Share<kLast> share(s);
  const std::int64_t c = share.channel;
  const std::int64_t count = share.any ? s.images * s.positions : 0;
  const auto population = static_cast<float>(s.images * s.positions);
  float mean = 0, variance = 0;
  if (training) {
    for (std::int64_t i = share.first; i < count; i += share.step) mean += x[element_of(s, c, i)];
    mean = share.sum(mean) / population;
    for (std::int64_t i = share.first; i < count; i += share.step) {
      const float away = x[element_of(s, c, i)] - mean;
      variance += away * away;
    }
    variance = share.sum(variance) / population;
    const bool writes = share.any && share.first == 0;
    if (writes && means) means[c] = mean;
    if (writes && variances) variances[c] = variance;
  } else {
    mean = given_means[c];
    variance = given_variances[c];
  }
  const float factor = 1 / std::sqrt(variance + s.epsilon) * scale[c];
  // With given moments, several blocks share a channel and interleave its positions.
  const std::int64_t step = share.step * gridDim.y;
  for (std::int64_t i = share.first + share.step * blockIdx.y; i < count; i += step) {
    const std::int64_t at = element_of(s, c, i);
    const float value = (x[at] - mean) * factor + bias[c];
    const float raised = value < s.low ? s.low : value;
    y[at] = raised > s.high ? s.high : raised;
  }
}

template <bool kLast>
__global__ void batch_norm_gradient(Channels s, bool training, ConstFloatView dy, ConstFloatView x,
                                    ConstFloatView scale, ConstFloatView means,
                                    ConstFloatView variances, ConstFloatView biases, FloatView dx,
                                    FloatView dscales, FloatView dbiases) {
  const Share<kLast> share(s);
  const std::int64_t c = share.channel;
  const std::int64_t count = share.any ? s.images * s.positions : 0;
  const float mean = means[c];
  const float inverse = 1 / std::sqrt(variances[c] + s.epsilon);
  const float factor = inverse * scale[c];
  const float bias = s.clips ? biases[c] : 0.0f;
  const auto passed = [&](std::int64_t at) {
    if (!s.clips) return dy[at];
    const float y = (x[at] - mean) * factor + bias;
    return y < s.passes_from || y > s.high ? 0.0f : dy[at];
  };
  float dbias = 0, dscale = 0;
  for (std::int64_t i = share.first; i < count; i += share.step) {
    const std::int64_t at = element_of(s, c, i);
    const float g = passed(at);
    dbias += g;
    dscale += g * (x[at] - mean) * inverse;
  }
  dbias = share.sum(dbias);
  dscale = share.sum(dscale);
  const bool writes = share.any && share.first == 0;
  if (writes && dscales) dscales[c] = dscale;
  if (writes && dbiases) dbiases[c] = dbias;
  if (!dx) return;
  const auto population = static_cast<float>(s.images * s.positions);
  for (std::int64_t i = share.first; i < count; i += share.step) {
    const std::int64_t at = element_of(s, c, i);
    const float normal = (x[at] - mean) * inverse;
    const float shift = training ? (dbias + normal * dscale) / population : 0.0f;
    dx[at] = factor * (passed(at) - shift);
  }
}

__global__ void variances_of(std::int64_t count, float epsilon, const float* inverses,
                             float* variances) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const float variance = 1 / (inverses[i] * inverses[i]) - epsilon;
    variances[i] = variance < 0 ? 0 : variance;  // NaN stays
  }
}

__global__ void inverse_deviations_of(std::int64_t count, float epsilon, const float* variances,
                                      float* inverses) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    inverses[i] = 1 / std::sqrt(variances[i] + epsilon);
}

__global__ void batch_norm_passed(Channels s, ConstFloatView dy, ConstFloatView x,
                                  ConstFloatView scale, ConstFloatView means,
                                  ConstFloatView variances, ConstFloatView biases,
                                  FloatView passed) {
  const std::int64_t count = s.images * s.channels * s.positions;
  for (std::int64_t at = first_of_thread(); at < count; at += step_of_thread()) {
    const std::int64_t c = (s.channels_last ? at : at / s.positions) % s.channels;
    const float factor = 1 / std::sqrt(variances[c] + s.epsilon) * scale[c];
    const float y = (x[at] - means[c]) * factor + biases[c];
    passed[at] = y < s.passes_from || y > s.high ? 0.0f : dy[at];
  }
}

unsigned channel_blocks(const Channels& s) {
  return static_cast<unsigned>(s.channels_last ? (s.channels + 31) / 32 : s.channels);
}

}  // namespace

void launch_batch_norm(const Channels& shape, const ConstFloatView& x, const ConstFloatView& scale,
                       const ConstFloatView& bias, const FloatView& mean, const FloatView& variance,
                       const FloatView& y, const CudaQueue& queue) {
  if (shape.channels == 0) return;
  const auto start = [&](auto kernel) {
    PT_LAUNCH(kernel, channel_blocks(shape), kBlock, queue.stream, shape, /*training=*/true, x,
              scale, bias, ConstFloatView(), ConstFloatView(), mean, variance, y);
  };
  shape.channels_last ? start(batch_norm<true>) : start(batch_norm<false>);
}

void launch_batch_norm_inference(const Channels& shape, const ConstFloatView& x,
                                 const ConstFloatView& scale, const ConstFloatView& bias,
                                 const ConstFloatView& mean, const ConstFloatView& variance,
                                 const FloatView& y, const CudaQueue& queue) {
  if (shape.channels == 0) return;
  const unsigned channels = channel_blocks(shape);
  const std::int64_t per_channel = static_cast<std::int64_t>(blocks_for(
                                       shape.images * shape.channels * shape.positions, queue)) /
                                   channels;
  const auto shares = static_cast<unsigned>(per_channel < 1 ? 1 : per_channel);
  const auto start = [&](auto kernel) {
    PT_LAUNCH(kernel, dim3(channels, shares), kBlock, queue.stream, shape, /*training=*/false, x,
              scale, bias, mean, variance, FloatView(), FloatView(), y);
  };
  shape.channels_last ? start(batch_norm<true>) : start(batch_norm<false>);
}

void launch_batch_norm_gradient(const Channels& shape, bool training, const ConstFloatView& dy,
                                const ConstFloatView& x, const ConstFloatView& scale,
                                const ConstFloatView& mean, const ConstFloatView& variance,
                                const ConstFloatView& bias, const FloatView& dx,
                                const FloatView& dscale, const FloatView& dbias,
                                const CudaQueue& queue) {
  if (shape.channels == 0) return;
  const auto start = [&](auto kernel) {
    PT_LAUNCH(kernel, channel_blocks(shape), kBlock, queue.stream, shape, training, dy, x, scale,
              mean, variance, bias, dx, dscale, dbias);
  };
  shape.channels_last ? start(batch_norm_gradient<true>) : start(batch_norm_gradient<false>);
}

void launch_variances(std::int64_t count, float epsilon, const float* inverse_deviations,
                      float* variances, const CudaQueue& queue) {
  PT_LAUNCH(variances_of, blocks_for(count, queue), kBlock, queue.stream, count, epsilon,
            inverse_deviations, variances);
}

void launch_inverse_deviations(std::int64_t count, float epsilon, const float* variances,
                               float* inverse_deviations, const CudaQueue& queue) {
  PT_LAUNCH(inverse_deviations_of, blocks_for(count, queue), kBlock, queue.stream, count, epsilon,
            variances, inverse_deviations);
}

void launch_batch_norm_passed(const Channels& shape, const ConstFloatView& dy,
                              const ConstFloatView& x, const ConstFloatView& scale,
                              const ConstFloatView& mean, const ConstFloatView& variance,
                              const ConstFloatView& bias, const FloatView& passed,
                              const CudaQueue& queue) {
  const std::int64_t count = shape.images * shape.channels * shape.positions;
  PT_LAUNCH(batch_norm_passed, blocks_for(count, queue), kBlock, queue.stream, shape, dy, x, scale,
            mean, variance, bias, passed);
}

}  // namespace pipetrain::batch_norm
