// Dropout (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/dropout_mask_cuda.h"
#include "ops/stored_cuda.h"

namespace pipetrain::dropout {

void launch_dropout(const DropoutMask& mask, const Numbers& x, const Places& y, std::int64_t count,
                    const CudaQueue& queue);

}  // namespace pipetrain::dropout
