// Grid sizes of hand-written kernels (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"

namespace pipetrain {

constexpr int kBlock = 256;

/// Blocks of a grid-stride kernel over `count` elements: enough to fill the device.
inline unsigned blocks_for(std::int64_t count, const CudaQueue& queue, int block = kBlock) {
  const std::int64_t wanted = (count + block - 1) / block;
  const std::int64_t most = std::int64_t{8} * queue.multiprocessors;
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/// Blocks of a kernel that processes one row per block, with a grid stride.
inline unsigned blocks_of_rows(std::int64_t rows, const CudaQueue& queue) {
  const std::int64_t most = std::int64_t{16} * queue.multiprocessors;
  return static_cast<unsigned>(rows < most ? rows : most);
}

}  // namespace pipetrain
