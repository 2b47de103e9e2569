// Losses (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::loss {

/// Logits and their gradient: rows begin `stride` elements apart.
struct Entropy {
  std::int64_t rows, classes, stride, ignored;
  float smoothing;
};
/// A label out of range makes the loss NaN. `workspace`: 2 * rows floats. `correct` and `log_sums`
/// may be null.
void launch_cross_entropy(const Entropy& shape, const ConstFloatView& x, const std::int64_t* labels,
                          const FloatView& loss, const FloatView& correct,
                          const FloatView& log_sums, float* workspace, const CudaQueue& queue);
void launch_cross_entropy_gradient(const Entropy& shape, const ConstFloatView& x,
                                   const std::int64_t* labels, const ConstFloatView& log_sums,
                                   const ConstFloatView& gy, const FloatView& dx,
                                   const CudaQueue& queue);

/// Sums of two lists; the sums may be null.
void launch_two_sums(const ConstFloatView& a, const ConstFloatView& b, std::int64_t count,
                     const FloatView& sum_a, const FloatView& sum_b, const CudaQueue& queue);

enum class Pointwise { kBinaryCrossEntropy, kSquared, kAbsolute };
/// Sums of losses and of correct predictions (may be null). `workspace`: 2 * kPointwiseParts
/// floats.
constexpr int kPointwiseParts = 256;
void launch_pointwise_loss(Pointwise kind, const ConstFloatView& x, const ConstFloatView& target,
                           std::int64_t count, const FloatView& loss, const FloatView& correct,
                           float* workspace, const CudaQueue& queue);
void launch_pointwise_gradient(Pointwise kind, const ConstFloatView& x,
                               const ConstFloatView& target, std::int64_t count,
                               const ConstFloatView& gy, const FloatView& dx,
                               const CudaQueue& queue);

}  // namespace pipetrain::loss
