// A few rows of channels in blocks of 8 times a panel of 16 columns, as the products of
// convolutions over channel-blocked tensors are made of. Include it from *_cpu.cpp files only.
#pragma once

#include <cstdint>
#include <span>

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

/// Fetches floats that are about to be read or written. Nothing happens where there is no memory.
inline void prefetch(const float* from, std::int64_t count) {
  constexpr std::int64_t kLine = 16;
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i);
}

/// Where one pair of operands of the products below begins.
struct OperandPair {
  std::int64_t v, z;
};

/// The products for weight gradients, which sum over rows: kCount channels of v from `channel`
/// times the 16 columns of z, summed over all pairs of operands. A channel block of v is v_block
/// behind the one before it, the second half of z's columns z_block behind the first. Sets the
/// channels' rows of m, which are m_row apart, or without `first` adds to them.
template <int kCount>
[[gnu::always_inline]] inline void multiply_transposed_rows(const float* v, std::int64_t v_block,
                                                            std::int64_t channel, const float* z,
                                                            std::int64_t z_block, std::int64_t rows,
                                                            std::span<const OperandPair> pairs,
                                                            bool first, float* m,
                                                            std::int64_t m_row) {
  Vector8 low[kCount] = {}, high[kCount] = {};
  if (!first) {
    for (int c = 0; c < kCount; ++c) {
      low[c] = load8(m + c * m_row);
      high[c] = load8(m + c * m_row + kLanes);
    }
  }
  for (const OperandPair& pair : pairs) {
    const float* channels[kCount];
    for (int c = 0; c < kCount; ++c) {
      channels[c] = v + pair.v + (channel + c) / kLanes * v_block + (channel + c) % kLanes;
    }
    const float* columns = z + pair.z;
    for (std::int64_t at = 0; at < rows * kLanes; at += kLanes) {
      const Vector8 z_low = load8(columns + at), z_high = load8(columns + z_block + at);
#pragma GCC unroll 6
      for (int c = 0; c < kCount; ++c) {
        const Vector8 factor = fill8(channels[c][at]);
        low[c] += factor * z_low;
        high[c] += factor * z_high;
      }
    }
  }
#pragma GCC unroll 6
  for (int c = 0; c < kCount; ++c) {
    store8(m + c * m_row, low[c]);
    store8(m + c * m_row + kLanes, high[c]);
  }
}

/// Channels of one call of the products below, unless fewer are left.
constexpr std::int64_t kChannelsTogether = 6;

/// The same for the next channels of `count` that are left: an even number, since blocks are whole.
[[gnu::always_inline]] inline void multiply_transposed(std::int64_t count, const float* v,
                                                       std::int64_t v_block, std::int64_t channel,
                                                       const float* z, std::int64_t z_block,
                                                       std::int64_t rows,
                                                       std::span<const OperandPair> pairs,
                                                       bool first, float* m, std::int64_t m_row) {
  if (count >= kChannelsTogether) {
    multiply_transposed_rows<kChannelsTogether>(v, v_block, channel, z, z_block, rows, pairs, first,
                                                m, m_row);
  } else if (count == 4) {
    multiply_transposed_rows<4>(v, v_block, channel, z, z_block, rows, pairs, first, m, m_row);
  } else {
    multiply_transposed_rows<2>(v, v_block, channel, z, z_block, rows, pairs, first, m, m_row);
  }
}

}  // namespace pipetrain::blocked
