// What stages do on GPUs beside the nodes (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"

namespace pipetrain {

void launch_fill(float* to, float value, std::int64_t count, const CudaQueue& queue);
/// to[i] += from[i]
void launch_add(float* to, const float* from, std::int64_t count, const CudaQueue& queue);

constexpr int kSquareParts = 256;
/// Adds up squares in an order that depends on `count` only; `scratch` has kSquareParts places.
void launch_sum_of_squares(const float* values, std::int64_t count, double* sum, double* scratch,
                           const CudaQueue& queue);

}  // namespace pipetrain
