// Cumulative sums and products on GPUs (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"
#include "ops/reduce/cumulative_axis.h"

namespace pipetrain::reduce {

void launch_cumulative(const CumulativeAxis& axis, bool product, const ConstFloatView& x,
                       const FloatView& y, const CudaQueue& queue);
void launch_cumulative(const CumulativeAxis& axis, bool product, const std::int32_t* x,
                       std::int32_t* y, const CudaQueue& queue);
void launch_cumulative(const CumulativeAxis& axis, bool product, const std::int64_t* x,
                       std::int64_t* y, const CudaQueue& queue);

}  // namespace pipetrain::reduce
