// Resampling along one axis (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::resize {

/// A sparse matrix (resize_map.h) that is small enough for a kernel's parameters.
struct Terms {
  static constexpr int kMostOutputs = 1024, kMostTerms = 2048;
  std::uint16_t first[kMostOutputs + 1];  // first term of each output
  std::uint16_t index[kMostTerms];        // input
  float weight[kMostTerms];
};

/// y[o, i, k] = Σ weight · x[o, index, k], for y of (outer, outputs, inner) and x of (outer,
/// inputs, inner).
struct Resample {
  std::int64_t outer, inputs, outputs, inner;
  Terms terms;
};
void launch_resample(const Resample& work, const ConstFloatView& x, const FloatView& y,
                     const CudaQueue& queue);

}  // namespace pipetrain::resize
