// Kernels that treat one row by itself: softmax, losses, layer norms; and dropout (C++17: nvcc
// compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/dropout_mask_cuda.h"
#include "ops/stored_cuda.h"

namespace pipetrain::row {

/// A tensor seen from one axis: element (o, e, i) is at (o * extent + e) * inner + i.
struct Lines {
  std::int64_t outer, extent, inner;
};
void launch_softmax(const Lines& lines, bool logarithm, const Numbers& x, const Places& y,
                    const CudaQueue& queue);
void launch_softmax_gradient(const Lines& lines, bool logarithm, const Numbers& dy,
                             const Numbers& y, const Places& dx, const CudaQueue& queue);

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

/// x: (rows, width). Scales and biases may be null, as may what is written beside y. Without
/// `centred` this is RmsNorm, and there are no means and biases.
struct Norm {
  std::int64_t rows, width;
  float epsilon;
  bool centred;
};
void launch_norm(const Norm& norm, const Numbers& x, const Numbers& scale, const Numbers& bias,
                 const Places& y, const Places& means, const Places& inverses,
                 const CudaQueue& queue);
void launch_norm_input_gradient(const Norm& norm, const Numbers& dy, const Numbers& x,
                                const Numbers& scale, const Numbers& means, const Numbers& inverses,
                                const Places& dx, const CudaQueue& queue);
/// Pieces of rows whose sums go through `workspace`: 2 * pieces * width floats.
std::int64_t norm_pieces(const Norm& norm);
void launch_norm_weight_gradient(const Norm& norm, const Numbers& dy, const Numbers& x,
                                 const Numbers& means, const Numbers& inverses,
                                 const Places& dscale, const Places& dbias, float* workspace,
                                 const CudaQueue& queue);

void launch_dropout(const DropoutMask& mask, const Numbers& x, const Places& y, std::int64_t count,
                    const CudaQueue& queue);

}  // namespace pipetrain::row
