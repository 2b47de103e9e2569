// Batched matrix transposes (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::reorder {

/// from: (matrices, rows, columns)   to: (matrices, columns, rows)
struct Matrices {
  std::int64_t matrices, rows, columns;
};
/// Elements of `size` bytes: 1, 2, 4 or 8.
void launch_transpose(const Matrices& shape, const void* from, void* to, int size,
                      const CudaQueue& queue);
/// Between floats of different stored types.
void launch_transpose(const Matrices& shape, const ConstFloatView& from, const FloatView& to,
                      const CudaQueue& queue);

}  // namespace pipetrain::reorder
