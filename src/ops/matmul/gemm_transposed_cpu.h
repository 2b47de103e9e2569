// The inner loops of gemm_packed_transposed() (ops/matmul/gemm_cpu.h): c^T = b^T a^T, where panels
// of b^T are the left operand. A panel is then contiguous along k, so a tile reads whole cache
// lines of it in order. Include it from gemm_cpu.cpp only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/matmul/gemm_packing_cpu.h"

namespace pipetrain::gemm_panels {

/// Packs rows of a, `stride` apart, as blocks (depth, 16 rows). Rows and depth are zero-padded to
/// multiples of 16.
inline void pack_across(const float* a, std::int64_t stride, std::int64_t rows,
                        std::int64_t k_block, float* to) {
  const std::int64_t depth = (k_block + kColumns - 1) / kColumns * kColumns;
  for (std::int64_t first = 0; first < rows; first += kColumns, to += depth * kColumns) {
    const float* from = a + first * stride;
    const std::int64_t count = std::min(kColumns, rows - first);
    if (count < kColumns) std::fill_n(to, depth * kColumns, 0.0F);
    std::int64_t row = 0;
    for (; row + kLanes <= count; row += kLanes)
      transpose_eight(from + row * stride, stride, k_block, to + row, kColumns);
    for (; row < count; ++row) {
      for (std::int64_t k = 0; k < k_block; ++k) to[k * kColumns + row] = from[row * stride + k];
    }
    std::fill_n(to + k_block * kColumns, (depth - k_block) * kColumns, 0.0F);
  }
}

/// sums[0..kCount)[0..16) = (or +=) the products of kCount lines of each of `panels` panels of b^T,
/// `distance` apart, with a block of pack_across().
template <int kCount>
void multiply_across(std::int64_t panels, const float* b, std::int64_t distance, const float* a,
                     bool add, float* sums) {
  Vector low[kCount] = {}, high[kCount] = {};
  for (std::int64_t p = 0; p < panels; ++p, b += distance) {
    // Prefetches the lines of the next tile.
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) __builtin_prefetch(b + (kRows + r) * kColumns);
#pragma GCC unroll 8
    for (int step = 0; step < kColumns; ++step, a += kColumns) {
      const Vector a_low = load8(a), a_high = load8(a + kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) {
        const Vector factor = fill8(b[r * kColumns + step]);
        low[r] += factor * a_low;
        high[r] += factor * a_high;
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
    float* to = sums + r * kColumns;
    store8(to, add ? low[r] + load8(to) : low[r]);
    store8(to + kLanes, add ? high[r] + load8(to + kLanes) : high[r]);
  }
}

inline void multiply_across(std::int64_t count, std::int64_t panels, const float* b,
                            std::int64_t distance, const float* a, bool add, float* sums) {
  switch (count) {
    case 1:
      return multiply_across<1>(panels, b, distance, a, add, sums);
    case 2:
      return multiply_across<2>(panels, b, distance, a, add, sums);
    case 3:
      return multiply_across<3>(panels, b, distance, a, add, sums);
    case 4:
      return multiply_across<4>(panels, b, distance, a, add, sums);
    case 5:
      return multiply_across<5>(panels, b, distance, a, add, sums);
    default:
      return multiply_across<kRows>(panels, b, distance, a, add, sums);
  }
}

/// Writes sums (columns, 16 rows) to up to 16 rows of c, `stride` apart.
inline void store_across(const float* sums, std::int64_t columns, std::int64_t rows, float* c,
                         std::int64_t stride) {
  std::int64_t column = 0;
  for (; column + kLanes <= columns; column += kLanes)
    transpose_eight(sums + column * kColumns, kColumns, rows, c + column, stride);
  for (; column < columns; ++column) {
    for (std::int64_t r = 0; r < rows; ++r) c[r * stride + column] = sums[column * kColumns + r];
  }
}

}  // namespace pipetrain::gemm_panels
