// Layer and root-mean-square normalization (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::layer_norm {

/// x: (rows, width). Scales and biases may be null, as may all outputs except y. Without `centred`
/// this is RmsNorm, without means and biases.
struct Norm {
  std::int64_t rows, width;
  float epsilon;
  bool centred;
};
void launch_norm(const Norm& norm, const ConstFloatView& x, const ConstFloatView& scale,
                 const ConstFloatView& bias, const FloatView& y, const FloatView& means,
                 const FloatView& inverses, const CudaQueue& queue);
void launch_norm_input_gradient(const Norm& norm, const ConstFloatView& dy, const ConstFloatView& x,
                                const ConstFloatView& scale, const ConstFloatView& means,
                                const ConstFloatView& inverses, const FloatView& dx,
                                const CudaQueue& queue);
/// Number of row chunks with partial sums in `workspace`: 2 * chunks * width floats.
std::int64_t norm_chunks(const Norm& norm);
void launch_norm_weight_gradient(const Norm& norm, const ConstFloatView& dy,
                                 const ConstFloatView& x, const ConstFloatView& means,
                                 const ConstFloatView& inverses, const FloatView& dscale,
                                 const FloatView& dbias, float* workspace, const CudaQueue& queue);

}  // namespace pipetrain::layer_norm
