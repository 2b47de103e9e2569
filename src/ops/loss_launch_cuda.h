// Losses (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/stored_cuda.h"

namespace pipetrain::loss {

/// Logits and their gradient: rows begin `stride` elements apart.
struct Entropy {
  std::int64_t rows, classes, stride, ignored;
  float smoothing;
};
/// A label that is no class makes the loss NaN. `workspace`: 2 * rows floats. `correct` and
/// `log_sums` may be null.
void launch_cross_entropy(const Entropy& shape, const Numbers& x, const std::int64_t* labels,
                          const Places& loss, const Places& correct, const Places& log_sums,
                          float* workspace, const CudaQueue& queue);
void launch_cross_entropy_gradient(const Entropy& shape, const Numbers& x,
                                   const std::int64_t* labels, const Numbers& log_sums,
                                   const Numbers& gy, const Places& dx, const CudaQueue& queue);

/// Sums of two lists; the sums may be null.
void launch_two_sums(const Numbers& a, const Numbers& b, std::int64_t count, const Places& sum_a,
                     const Places& sum_b, const CudaQueue& queue);

enum class Pointwise { kBinaryCrossEntropy, kSquared, kAbsolute };
/// Sums of losses and right answers (may be null). `workspace`: 2 * kPointwiseParts floats.
constexpr int kPointwiseParts = 256;
void launch_pointwise_loss(Pointwise kind, const Numbers& x, const Numbers& target,
                           std::int64_t count, const Places& loss, const Places& correct,
                           float* workspace, const CudaQueue& queue);
void launch_pointwise_gradient(Pointwise kind, const Numbers& x, const Numbers& target,
                               std::int64_t count, const Numbers& gy, const Places& dx,
                               const CudaQueue& queue);

}  // namespace pipetrain::loss
