// Batch normalization: one block per channel; with channels last see batch_norm_last_cuda.cu.
//
// Compiled without fused multiply-add: the gradient recomputes y to see where it was clipped, and
// must get the bits of the forward pass.
#include <cmath>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/norm/batch_norm_launch_cuda.h"

namespace pipetrain::batch_norm {
namespace {

/// The offset of element i of a channel.
__device__ __forceinline__ std::int64_t element_of(const Channels& s, std::int64_t channel,
                                                   std::int64_t i) {
  return (i / s.positions * s.channels + channel) * s.positions + i % s.positions;
}

__global__ void batch_norm(Channels s, bool training, ConstFloatView x, ConstFloatView scale,
                           ConstFloatView bias, ConstFloatView residual, ConstFloatView given_means,
                           ConstFloatView given_variances, FloatView means, FloatView variances,
                           FloatView y) {
  const std::int64_t c = blockIdx.x;
  const std::int64_t count = s.images * s.positions;
  const auto population = static_cast<float>(count);
  float mean = 0, variance = 0;
  if (training) {
    for (std::int64_t i = threadIdx.x; i < count; i += kBlock) mean += x[element_of(s, c, i)];
    mean = over_block<kBlock>(mean, SumOf()) / population;
    for (std::int64_t i = threadIdx.x; i < count; i += kBlock) {
      const float away = x[element_of(s, c, i)] - mean;
      variance += away * away;
    }
    variance = over_block<kBlock>(variance, SumOf()) / population;
    if (threadIdx.x == 0 && means) means[c] = mean;
    if (threadIdx.x == 0 && variances) variances[c] = variance;
  } else {
    mean = given_means[c];
    variance = given_variances[c];
  }
  const float factor = 1 / std::sqrt(variance + s.epsilon) * scale[c];
  // With given moments, several blocks share a channel and interleave its positions.
  const std::int64_t step = static_cast<std::int64_t>(kBlock) * gridDim.y;
  for (std::int64_t i = threadIdx.x + static_cast<std::int64_t>(kBlock) * blockIdx.y; i < count;
       i += step) {
    const std::int64_t at = element_of(s, c, i);
    float value = (x[at] - mean) * factor + bias[c];
    if (residual) value += residual[at];
    const float raised = value < s.low ? s.low : value;
    y[at] = raised > s.high ? s.high : raised;
  }
}

__global__ void batch_norm_gradient(Channels s, bool training, ConstFloatView dy, ConstFloatView x,
                                    ConstFloatView scale, ConstFloatView means,
                                    ConstFloatView variances, ConstFloatView biases, FloatView dx,
                                    FloatView dscales, FloatView dbiases) {
  const std::int64_t c = blockIdx.x;
  const std::int64_t count = s.images * s.positions;
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
  for (std::int64_t i = threadIdx.x; i < count; i += kBlock) {
    const std::int64_t at = element_of(s, c, i);
    const float g = passed(at);
    dbias += g;
    dscale += g * (x[at] - mean) * inverse;
  }
  dbias = over_block<kBlock>(dbias, SumOf());
  dscale = over_block<kBlock>(dscale, SumOf());
  if (threadIdx.x == 0 && dscales) dscales[c] = dscale;
  if (threadIdx.x == 0 && dbiases) dbiases[c] = dbias;
  if (!dx) return;
  const auto population = static_cast<float>(count);
  for (std::int64_t i = threadIdx.x; i < count; i += kBlock) {
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

}  // namespace

void launch_batch_norm(const Channels& shape, const ConstFloatView& x, const ConstFloatView& scale,
                       const ConstFloatView& bias, const ConstFloatView& residual,
                       const FloatView& mean, const FloatView& variance, const FloatView& y,
                       float* workspace, const CudaQueue& queue) {
  if (shape.channels == 0 || shape.images * shape.positions == 0) return;
  if (shape.channels_last) {
    return launch_batch_norm_last(shape, x, scale, bias, residual, mean, variance, y, workspace,
                                  queue);
  }
  PT_LAUNCH(batch_norm, static_cast<unsigned>(shape.channels), kBlock, queue.stream, shape,
            /*training=*/true, x, scale, bias, residual, ConstFloatView(), ConstFloatView(), mean,
            variance, y);
}

void launch_batch_norm_inference(const Channels& shape, const ConstFloatView& x,
                                 const ConstFloatView& scale, const ConstFloatView& bias,
                                 const ConstFloatView& mean, const ConstFloatView& variance,
                                 const FloatView& y, float* workspace, const CudaQueue& queue) {
  if (shape.channels == 0 || shape.images * shape.positions == 0) return;
  if (shape.channels_last) {
    return launch_batch_norm_inference_last(shape, x, scale, bias, mean, variance, y, workspace,
                                            queue);
  }
  const auto channels = static_cast<unsigned>(shape.channels);
  const std::int64_t per_channel = static_cast<std::int64_t>(blocks_for(
                                       shape.images * shape.channels * shape.positions, queue)) /
                                   channels;
  const auto shares = static_cast<unsigned>(per_channel < 1 ? 1 : per_channel);
  PT_LAUNCH(batch_norm, dim3(channels, shares), kBlock, queue.stream, shape, /*training=*/false, x,
            scale, bias, ConstFloatView(), mean, variance, FloatView(), FloatView(), y);
}

void launch_batch_norm_gradient(const Channels& shape, bool training, const ConstFloatView& dy,
                                const ConstFloatView& x, const ConstFloatView& scale,
                                const ConstFloatView& mean, const ConstFloatView& variance,
                                const ConstFloatView& bias, const FloatView& dx,
                                const FloatView& dscale, const FloatView& dbias, float* workspace,
                                const CudaQueue& queue) {
  if (shape.channels == 0 || shape.images * shape.positions == 0) return;
  if (shape.channels_last) {
    return launch_batch_norm_gradient_last(shape, training, dy, x, scale, mean, variance, bias, dx,
                                           dscale, dbias, workspace, queue);
  }
  PT_LAUNCH(batch_norm_gradient, static_cast<unsigned>(shape.channels), kBlock, queue.stream, shape,
            training, dy, x, scale, mean, variance, bias, dx, dscale, dbias);
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
