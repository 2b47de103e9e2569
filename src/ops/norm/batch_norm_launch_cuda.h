// Batch normalization (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::batch_norm {

/// x: (images, channels, positions), or (images, positions, channels); y is clipped to [low, high].
struct Channels {
  std::int64_t images, channels, positions;
  float epsilon, low, high, passes_from;
  bool clips;
  bool channels_last = false;
};
/// Of the workspaces below; 0 unless channels are last.
std::int64_t workspace_floats(const Channels& shape);
/// Normalizes with the moments of x, which are written to `mean` and `variance` unless null. Adds
/// the residual, which may be null, before y is clipped.
void launch_batch_norm(const Channels& shape, const ConstFloatView& x, const ConstFloatView& scale,
                       const ConstFloatView& bias, const ConstFloatView& residual,
                       const FloatView& mean, const FloatView& variance, const FloatView& y,
                       float* workspace, const CudaQueue& queue);
/// Normalizes with given moments.
void launch_batch_norm_inference(const Channels& shape, const ConstFloatView& x,
                                 const ConstFloatView& scale, const ConstFloatView& bias,
                                 const ConstFloatView& mean, const ConstFloatView& variance,
                                 const FloatView& y, float* workspace, const CudaQueue& queue);
/// `training`: mean and variance depend on x. dx, dscale, dbias may be null.
void launch_batch_norm_gradient(const Channels& shape, bool training, const ConstFloatView& dy,
                                const ConstFloatView& x, const ConstFloatView& scale,
                                const ConstFloatView& mean, const ConstFloatView& variance,
                                const ConstFloatView& bias, const FloatView& dx,
                                const FloatView& dscale, const FloatView& dbias, float* workspace,
                                const CudaQueue& queue);

// The same with channels last, of at least one element: what the functions above call.
void launch_batch_norm_last(const Channels& shape, const ConstFloatView& x,
                            const ConstFloatView& scale, const ConstFloatView& bias,
                            const ConstFloatView& residual, const FloatView& mean,
                            const FloatView& variance, const FloatView& y, float* workspace,
                            const CudaQueue& queue);
void launch_batch_norm_inference_last(const Channels& shape, const ConstFloatView& x,
                                      const ConstFloatView& scale, const ConstFloatView& bias,
                                      const ConstFloatView& mean, const ConstFloatView& variance,
                                      const FloatView& y, float* workspace, const CudaQueue& queue);
void launch_batch_norm_gradient_last(const Channels& shape, bool training, const ConstFloatView& dy,
                                     const ConstFloatView& x, const ConstFloatView& scale,
                                     const ConstFloatView& mean, const ConstFloatView& variance,
                                     const ConstFloatView& bias, const FloatView& dx,
                                     const FloatView& dscale, const FloatView& dbias,
                                     float* workspace, const CudaQueue& queue);

// Conversions around cuDNN's batch normalization.
/// From 1 / sqrt(variance + epsilon) to the variance, and back.
void launch_variances(std::int64_t count, float epsilon, const float* inverse_deviations,
                      float* variances, const CudaQueue& queue);
void launch_inverse_deviations(std::int64_t count, float epsilon, const float* variances,
                               float* inverse_deviations, const CudaQueue& queue);
/// dy where y is within its limits, else 0.
void launch_batch_norm_passed(const Channels& shape, const ConstFloatView& dy,
                              const ConstFloatView& x, const ConstFloatView& scale,
                              const ConstFloatView& mean, const ConstFloatView& variance,
                              const ConstFloatView& bias, const FloatView& passed,
                              const CudaQueue& queue);

}  // namespace pipetrain::batch_norm
