// Copies into padded rows (Layout::kPaddedRows; C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::elementwise {

/// x: (rows, columns) → y: the same in its type, each row padded with zeros to a multiple of kWide
/// elements, and padded with rows of zeros to `padded_rows`.
void launch_restore_rows(const ConstFloatView& x, const FloatView& y, std::int64_t rows,
                         std::int64_t columns, std::int64_t padded_rows, const CudaQueue& queue);

}  // namespace pipetrain::elementwise
