// Pooling (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::pool {

/// One axis of a pooling window; an average divides by the number of taps at positions
/// [count_begin, count_end).
struct PoolAxis {
  std::int64_t input, kernel, stride, dilation, pad, output, count_begin, count_end;
};
/// (planes, height, width, inner): row-major feature maps have images * channels planes and inner
/// extent 1; channels-last ones have one plane per image and channels innermost.
struct Pool {
  PoolAxis axes[3];
  std::int64_t planes, inner;
};
/// `index`: the position in the plane of each maximum; may be null.
void launch_max_pool(const Pool& pool, const ConstFloatView& x, const FloatView& y,
                     std::int32_t* index, const CudaQueue& queue);
void launch_max_pool_gradient(const Pool& pool, const ConstFloatView& dy, const std::int32_t* index,
                              const FloatView& dx, const CudaQueue& queue);
void launch_average_pool(const Pool& pool, const ConstFloatView& x, const FloatView& y,
                         const CudaQueue& queue);
void launch_average_pool_gradient(const Pool& pool, const ConstFloatView& dy, const FloatView& dx,
                                  const CudaQueue& queue);

}  // namespace pipetrain::pool
