// Kernels that treat one row by itself: softmax, losses, layer norms; and dropout (C++17: nvcc
// compiles this file).
#pragma once

#include <cstdint>

#include "base/random.h"
#include "device/queue_cuda.h"

namespace pipetrain::row {

/// A tensor seen from one axis: element (o, e, i) is at (o * extent + e) * inner + i.
struct Lines {
  std::int64_t outer, extent, inner;
};
void launch_softmax(const Lines& lines, bool logarithm, const float* x, float* y,
                    const CudaQueue& queue);
void launch_softmax_gradient(const Lines& lines, bool logarithm, const float* dy, const float* y,
                             float* dx, const CudaQueue& queue);

struct Entropy {
  std::int64_t rows, classes, ignored;
  float smoothing;
};
/// A label that is no class makes the loss NaN. `workspace`: 2 * rows floats. `correct` and
/// `log_sums` may be null.
void launch_cross_entropy(const Entropy& shape, const float* x, const std::int64_t* labels,
                          float* loss, float* correct, float* log_sums, float* workspace,
                          const CudaQueue& queue);
void launch_cross_entropy_gradient(const Entropy& shape, const float* x, const std::int64_t* labels,
                                   const float* log_sums, const float* gy, float* dx,
                                   const CudaQueue& queue);

enum class Pointwise { kBinaryCrossEntropy, kSquared, kAbsolute };
/// Sums of losses and right answers (may be null). `workspace`: 2 * kPointwiseParts floats.
constexpr int kPointwiseParts = 256;
void launch_pointwise_loss(Pointwise kind, const float* x, const float* target, std::int64_t count,
                           float* loss, float* correct, float* workspace, const CudaQueue& queue);
void launch_pointwise_gradient(Pointwise kind, const float* x, const float* target,
                               std::int64_t count, const float* gy, float* dx,
                               const CudaQueue& queue);

/// x: (rows, width). Scales and biases may be null, as may what is written beside y. Without
/// `centred` this is RmsNorm, and there are no means and biases.
struct Norm {
  std::int64_t rows, width;
  float epsilon;
  bool centred;
};
void launch_norm(const Norm& norm, const float* x, const float* scale, const float* bias, float* y,
                 float* means, float* inverses, const CudaQueue& queue);
void launch_norm_input_gradient(const Norm& norm, const float* dy, const float* x,
                                const float* scale, const float* means, const float* inverses,
                                float* dx, const CudaQueue& queue);
/// Pieces of rows whose sums go through `workspace`: 2 * pieces * width floats.
std::int64_t norm_pieces(const Norm& norm);
void launch_norm_weight_gradient(const Norm& norm, const float* dy, const float* x,
                                 const float* means, const float* inverses, float* dscale,
                                 float* dbias, float* workspace, const CudaQueue& queue);

struct Mask {
  PhiloxKey key;
  std::uint32_t threshold;
  float scale;
  std::int64_t first_sample, per_sample;
};
void launch_dropout(const Mask& mask, const float* x, float* y, std::int64_t count,
                    const CudaQueue& queue);

}  // namespace pipetrain::row
