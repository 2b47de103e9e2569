// Pooling and batch normalization (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"

namespace pipetrain::spatial {

/// One axis of a pooling window; an average counts taps at positions [count_begin, count_end).
struct PoolAxis {
  std::int64_t input, kernel, stride, dilation, pad, output, count_begin, count_end;
};
struct Pool {
  PoolAxis axes[3];
  std::int64_t planes;
};
/// `index`: place in the plane that each maximum comes from; may be null.
void launch_max_pool(const Pool& pool, const float* x, float* y, std::int32_t* index,
                     const CudaQueue& queue);
void launch_max_pool_gradient(const Pool& pool, const float* dy, const std::int32_t* index,
                              float* dx, const CudaQueue& queue);
void launch_average_pool(const Pool& pool, const float* x, float* y, const CudaQueue& queue);
void launch_average_pool_gradient(const Pool& pool, const float* dy, float* dx,
                                  const CudaQueue& queue);

/// x: (images, channels, positions); y is clipped to [low, high].
struct Channels {
  std::int64_t images, channels, positions;
  float epsilon, low, high, passes_from;
  bool clips;
};
/// `mean` and `variance` are computed when `training`; they may then be null where nobody reads
/// them.
void launch_batch_norm(const Channels& shape, bool training, const float* x, const float* scale,
                       const float* bias, float* mean, float* variance, float* y,
                       const CudaQueue& queue);
/// `training`: mean and variance depend on x. dx, dscale, dbias may be null.
void launch_batch_norm_gradient(const Channels& shape, bool training, const float* dy,
                                const float* x, const float* scale, const float* mean,
                                const float* variance, const float* bias, float* dx, float* dscale,
                                float* dbias, const CudaQueue& queue);

}  // namespace pipetrain::spatial
