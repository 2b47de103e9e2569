// Losses of equal shapes; sums over threads have a fixed order.
#include <cmath>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/loss/loss_launch_cuda.h"

namespace pipetrain::loss {
namespace {

/// Sums of two lists, by one block.
__global__ void add_two(ConstFloatView a, ConstFloatView b, std::int64_t count, FloatView sum_a,
                        FloatView sum_b) {
  double first = 0, second = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kBlock) {
    first += static_cast<double>(a[i]);
    second += static_cast<double>(b[i]);
  }
  first = over_block<kBlock>(first, SumOf());
  second = over_block<kBlock>(second, SumOf());
  if (threadIdx.x != 0) return;
  if (sum_a) sum_a[0] = static_cast<float>(first);
  if (sum_b) sum_b[0] = static_cast<float>(second);
}

__device__ __forceinline__ float loss_of(Pointwise kind, float x, float t) {
  switch (kind) {
    case Pointwise::kBinaryCrossEntropy:
      return (x > 0 ? x : 0.0f) - x * t + std::log1p(std::exp(-std::fabs(x)));
    case Pointwise::kSquared:
      return (x - t) * (x - t);
    case Pointwise::kAbsolute:
      return std::fabs(x - t);
  }
  return 0;
}

__device__ __forceinline__ float slope_of(Pointwise kind, float x, float t) {
  switch (kind) {
    case Pointwise::kBinaryCrossEntropy:
      return 1 / (1 + std::exp(-x)) - t;
    case Pointwise::kSquared:
      return 2 * (x - t);
    case Pointwise::kAbsolute:
      return x > t ? 1.0f : (x < t ? -1.0f : 0.0f);
  }
  return 0;
}

__global__ void pointwise_loss(Pointwise kind, ConstFloatView x, ConstFloatView target,
                               std::int64_t count, FloatView losses, FloatView hits) {
  float loss = 0, hit = 0;
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    loss += loss_of(kind, x[i], target[i]);
    hit += (x[i] > 0) == (target[i] > 0.5f) ? 1.0f : 0.0f;
  }
  loss = over_block<kBlock>(loss, SumOf());
  hit = over_block<kBlock>(hit, SumOf());
  if (threadIdx.x != 0) return;
  losses[blockIdx.x] = loss;
  hits[blockIdx.x] = hit;
}

__global__ void pointwise_gradient(Pointwise kind, ConstFloatView x, ConstFloatView target,
                                   std::int64_t count, ConstFloatView gy, FloatView dx) {
  const float scale = gy[0];
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    dx[i] = slope_of(kind, x[i], target[i]) * scale;
}

}  // namespace

void launch_two_sums(const ConstFloatView& a, const ConstFloatView& b, std::int64_t count,
                     const FloatView& sum_a, const FloatView& sum_b, const CudaQueue& queue) {
  PT_LAUNCH(add_two, 1, kBlock, queue.stream, a, b, count, sum_a, sum_b);
}

void launch_pointwise_loss(Pointwise kind, const ConstFloatView& x, const ConstFloatView& target,
                           std::int64_t count, const FloatView& loss, const FloatView& correct,
                           float* workspace, const CudaQueue& queue) {
  float* hits = workspace + kPointwiseParts;
  PT_LAUNCH(pointwise_loss, kPointwiseParts, kBlock, queue.stream, kind, x, target, count,
            workspace, hits);
  launch_two_sums(ConstFloatView(workspace), ConstFloatView(hits), kPointwiseParts, loss, correct,
                  queue);
}

void launch_pointwise_gradient(Pointwise kind, const ConstFloatView& x,
                               const ConstFloatView& target, std::int64_t count,
                               const ConstFloatView& gy, const FloatView& dx,
                               const CudaQueue& queue) {
  if (count == 0) return;
  PT_LAUNCH(pointwise_gradient, blocks_for(count, queue), kBlock, queue.stream, kind, x, target,
            count, gy, dx);
}

}  // namespace pipetrain::loss
