// A few rows of channels in blocks of 8 times a panel of 16 columns, as the products of
// convolutions over channel-blocked tensors are made of. Include it from *_cpu.cpp files only.
#pragma once

#include <cstdint>

#include "ops/row_split_cpu.h"
#include "ops/vector8_cpu.h"

namespace pipetrain::blocked {

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kPanel = 16;  // columns of one inner loop: two vectors of eight

/// Adds to rows [0, kRows) of m, or with `first` sets them. Channel block b of v's row r is at
/// v + b * v_block + r * 8, a channel's 16 columns of u are `u_step` floats apart, and the two
/// blocks of m's row r are at m + r * 8 and m_block behind it.
template <int kRows>
[[gnu::always_inline]] inline void multiply_rows(const float* v, std::int64_t v_block,
                                                 const float* u, std::int64_t u_step,
                                                 std::int64_t blocks, bool first, float* m,
                                                 std::int64_t m_block) {
  Vector8 low[kRows] = {}, high[kRows] = {};
  if (!first) {
    for (int r = 0; r < kRows; ++r) {
      low[r] = load8(m + r * kLanes);
      high[r] = load8(m + m_block + r * kLanes);
    }
  }
  for (std::int64_t block = 0; block < blocks; ++block, v += v_block) {
#pragma GCC unroll 2
    for (int c = 0; c < kLanes; ++c, u += u_step) {
      const Vector8 u_low = load8(u), u_high = load8(u + kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Vector8 factor = fill8(v[r * kLanes + c]);
        low[r] += factor * u_low;
        high[r] += factor * u_high;
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    store8(m + r * kLanes, low[r]);
    store8(m + m_block + r * kLanes, high[r]);
  }
}

/// The same for any number of rows.
[[gnu::always_inline]] inline void multiply(std::int64_t rows, const float* v, std::int64_t v_block,
                                            const float* u, std::int64_t u_step,
                                            std::int64_t blocks, bool first, float* m,
                                            std::int64_t m_block) {
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t take = rows_together(rows - row);
    const float* from = v + row * kLanes;
    float* to = m + row * kLanes;
    switch (take) {
      case 1:
        multiply_rows<1>(from, v_block, u, u_step, blocks, first, to, m_block);
        break;
      case 2:
        multiply_rows<2>(from, v_block, u, u_step, blocks, first, to, m_block);
        break;
      case 3:
        multiply_rows<3>(from, v_block, u, u_step, blocks, first, to, m_block);
        break;
      case 4:
        multiply_rows<4>(from, v_block, u, u_step, blocks, first, to, m_block);
        break;
      case 5:
        multiply_rows<5>(from, v_block, u, u_step, blocks, first, to, m_block);
        break;
      default:
        multiply_rows<6>(from, v_block, u, u_step, blocks, first, to, m_block);
    }
    row += take;
  }
}

}  // namespace pipetrain::blocked
