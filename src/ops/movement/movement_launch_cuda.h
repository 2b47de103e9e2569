// Copies between strided tensors (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::movement {

/// CopyPlan as a kernel argument.
struct CopyWalk {
  static constexpr int kMostDimensions = 8;
  int dimensions = 0;
  std::int64_t sizes[kMostDimensions] = {};
  std::int64_t target[kMostDimensions] = {};
  std::int64_t source[kMostDimensions] = {};
  std::int64_t count = 0;
};

/// A copy of elements that addresses the first of them.
struct CopyTask {
  CopyWalk walk;
  ConstFloatView from;
  FloatView to;
};

/// Copies that write different elements. Elements of `size` bytes (1, 2, 4 or 8) are copied
/// unchanged; with size 0 they are floats, converted between the views' types.
void launch_copies(const CopyTask* tasks, int count, int size, const CudaQueue& queue);
/// `bits`: the element, in its lowest bytes.
void launch_fill_elements(void* to, std::uint64_t bits, int size, std::int64_t count,
                          const CudaQueue& queue);
/// Keeps columns - row % rows >= k (upper) or <= k of (matrices, rows, columns).
void launch_trilu(const void* x, void* y, int size, std::int64_t rows, std::int64_t columns,
                  bool upper, std::int64_t k, std::int64_t count, const CudaQueue& queue);
void launch_trilu(const ConstFloatView& x, const FloatView& y, std::int64_t rows,
                  std::int64_t columns, bool upper, std::int64_t k, std::int64_t count,
                  const CudaQueue& queue);

}  // namespace pipetrain::movement
