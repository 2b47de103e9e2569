// Softmax along an axis (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::softmax {

/// A tensor viewed around the axis: element (o, e, i) is at (o * extent + e) * inner + i.
struct Lines {
  std::int64_t outer, extent, inner;
};
void launch_softmax(const Lines& lines, bool logarithm, const ConstFloatView& x, const FloatView& y,
                    const CudaQueue& queue);
void launch_softmax_gradient(const Lines& lines, bool logarithm, const ConstFloatView& dy,
                             const ConstFloatView& y, const FloatView& dx, const CudaQueue& queue);

}  // namespace pipetrain::softmax
