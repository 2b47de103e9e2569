// Positions sorted by the rows that they name, for .cu files.
#pragma once

#include <cstdint>

#include "ops/gather/gather_launch_cuda.h"

namespace pipetrain::gather {

using RowKey = std::uint64_t;  // row << bits | position: no two are equal

/// Positions sorted by the row that they name; those of one row stay in their order.
struct SortedRows {
  GatherShape shape;
  const RowKey* keys;
  int bits;

  __device__ std::int64_t row(std::int64_t i) const {
    return static_cast<std::int64_t>(keys[i] >> bits);
  }
  __device__ std::int64_t position(std::int64_t i) const {
    return static_cast<std::int64_t>(keys[i] & ((RowKey{1} << bits) - 1));
  }
  __device__ bool continues(std::int64_t i) const { return i > 0 && row(i - 1) == row(i); }
  __device__ std::int64_t width() const { return shape.outer * shape.slice; }
};

/// Sorts all positions. `workspace`: sort_workspace() bytes, which the result refers to.
SortedRows sort_rows(const GatherShape& shape, const void* indices, void* workspace,
                     const CudaQueue& queue);

}  // namespace pipetrain::gather
