// Softmax along an axis (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/stored_cuda.h"

namespace pipetrain::softmax {

/// A tensor seen from one axis: element (o, e, i) is at (o * extent + e) * inner + i.
struct Lines {
  std::int64_t outer, extent, inner;
};
void launch_softmax(const Lines& lines, bool logarithm, const Numbers& x, const Places& y,
                    const CudaQueue& queue);
void launch_softmax_gradient(const Lines& lines, bool logarithm, const Numbers& dy,
                             const Numbers& y, const Places& dx, const CudaQueue& queue);

}  // namespace pipetrain::softmax
