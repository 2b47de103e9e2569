// Dropout (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"
#include "ops/random/dropout_mask_cuda.h"

namespace pipetrain::dropout {

void launch_dropout(const DropoutMask& mask, const ConstFloatView& x, const FloatView& y,
                    std::int64_t count, const CudaQueue& queue);

}  // namespace pipetrain::dropout
