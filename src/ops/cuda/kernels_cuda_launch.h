// GPU work of a stage outside the graph's nodes (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"

namespace pipetrain {

void launch_fill(float* to, float value, std::int64_t count, const CudaQueue& queue);
/// to[i] += from[i]
void launch_add(float* to, const float* from, std::int64_t count, const CudaQueue& queue);

/// Partial sums of a tensor: Device::kScratch.
constexpr int kSquareParts = 256;
constexpr int kMostSquared = 1024;
struct SquareList {
  int count = 0;
  const float* values[kMostSquared];
  std::int64_t counts[kMostSquared];
};
/// Adds up the squares of each tensor in an order that depends on its count only. `scratch`:
/// kSquareParts values for each.
void launch_sums_of_squares(const SquareList& list, double* sums, double* scratch,
                            const CudaQueue& queue);

}  // namespace pipetrain
