// Micro-kernels of channel-blocked convolutions: a few rows of channels in blocks of 8, times a
// panel of 16 columns. Include it from *_cpu.cpp files only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/row_split_cpu.h"

namespace pipetrain::blocked {

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kPanel = 16;  // columns of one inner loop: two vectors of eight, or one

/// A tensor (sample, channel, position) in blocks of 8 or 16 channels; a block of 16 is treated as
/// two adjacent blocks of 8.
struct ChannelBlocks {
  std::int64_t channels, positions, lanes;

  /// Address of 8 channels of a sample; positions are `lanes` apart.
  std::int64_t at(std::int64_t sample, std::int64_t block) const {
    const std::int64_t channel = block * kLanes;
    return (sample * channels + channel / lanes * lanes) * positions + channel % lanes;
  }
};

/// Adds to rows [0, kRows) of m, or with `first` overwrites them. The new terms are summed first,
/// here and below: adding up partial sums rounds less than one long sum does. Channel block b of
/// v's row r is at v + b * v_block + r * 8; the 16 columns of u of consecutive channels are
/// `u_step` floats apart; the two blocks of m's row r are at m + r * 8 and m + m_block + r * 8.
template <int kRows>
inline void multiply_rows(const float* v, std::int64_t v_block, const float* u, std::int64_t u_step,
                          std::int64_t blocks, bool first, float* m, std::int64_t m_block) {
  Vector8 low[kRows] = {}, high[kRows] = {};
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
  if (!first) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      low[r] += load8(m + r * kLanes);
      high[r] += load8(m + m_block + r * kLanes);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    store8(m + r * kLanes, low[r]);
    store8(m + m_block + r * kLanes, high[r]);
  }
}

/// The two halves of a row of m: the first 8 columns, and the others.
PIPETRAIN_AVX512 inline Vector16 load_halves(const float* low, const float* high) {
  const Vector8 first = load8(low), second = load8(high);
  return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                 15);
}
PIPETRAIN_AVX512 inline void store_halves(const Vector16& value, float* low, float* high) {
  store8(low, __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7));
  store8(high, __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15));
}

/// The same with AVX-512: a row is one vector.
template <int kRows>
PIPETRAIN_AVX512 inline void multiply_wide_rows(const float* v, std::int64_t v_block,
                                                const float* u, std::int64_t u_step,
                                                std::int64_t blocks, bool first, float* m,
                                                std::int64_t m_block) {
  Vector16 sums[kRows] = {};
  for (std::int64_t block = 0; block < blocks; ++block, v += v_block) {
    for (int c = 0; c < kLanes; ++c, u += u_step) {
      const Vector16 columns = load16(u);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sums[r] += fill16(v[r * kLanes + c]) * columns;
    }
  }
  if (!first) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r] += load_halves(m + r * kLanes, m + m_block + r * kLanes);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    store_halves(sums[r], m + r * kLanes, m + m_block + r * kLanes);
  }
}

using Rows = void (*)(const float* v, std::int64_t v_block, const float* u, std::int64_t u_step,
                      std::int64_t blocks, bool first, float* m, std::int64_t m_block);

/// The same for any number of rows.
inline void multiply(std::int64_t rows, const float* v, std::int64_t v_block, const float* u,
                     std::int64_t u_step, std::int64_t blocks, bool first, float* m,
                     std::int64_t m_block) {
  static constexpr auto kNarrow = []<int... kBefore>(std::integer_sequence<int, kBefore...>) {
    return std::array<Rows, kMostRows>{multiply_rows<kBefore + 1>...};
  }
  (std::make_integer_sequence<int, kMostRows>());
  static constexpr auto kWide = []<int... kBefore>(std::integer_sequence<int, kBefore...>) {
    return std::array<Rows, kMostWideRows>{multiply_wide_rows<kBefore + 1>...};
  }
  (std::make_integer_sequence<int, kMostWideRows>());
  const bool wide = has_avx512();
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t take = wide ? wide_rows_together(rows - row) : rows_together(rows - row);
    const auto index = static_cast<std::size_t>(take - 1);
    (wide ? kWide[index] : kNarrow[index])(v + row * kLanes, v_block, u, u_step, blocks, first,
                                           m + row * kLanes, m_block);
    row += take;
  }
}

/// Prefetches memory that is about to be read or written. Invalid addresses are harmless.
template <class Element>
void prefetch(const Element* from, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(Element);
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i);
}

/// Addresses of one pair of operands of the products below.
struct OperandPair {
  std::int64_t v, z;
};

/// The products for weight gradients, which sum over rows: kCount channels of v from `channel`
/// times the 16 columns of z, summed over all pairs of operands. Channel blocks of v are v_block
/// apart, the two halves of z's columns z_block. Overwrites the channels' rows of m, which are
/// m_row apart, or without `first` adds to them.
template <int kCount>
inline void multiply_transposed_rows(const float* v, std::int64_t v_block, std::int64_t channel,
                                     const float* z, std::int64_t z_block, std::int64_t rows,
                                     std::span<const OperandPair> pairs, bool first, float* m,
                                     std::int64_t m_row) {
  Vector8 low[kCount] = {}, high[kCount] = {};
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
  if (!first) {
#pragma GCC unroll 6
    for (int c = 0; c < kCount; ++c) {
      low[c] += load8(m + c * m_row);
      high[c] += load8(m + c * m_row + kLanes);
    }
  }
#pragma GCC unroll 6
  for (int c = 0; c < kCount; ++c) {
    store8(m + c * m_row, low[c]);
    store8(m + c * m_row + kLanes, high[c]);
  }
}

/// The same with AVX-512.
template <int kCount>
PIPETRAIN_AVX512 inline void multiply_transposed_wide_rows(const float* v, std::int64_t v_block,
                                                           std::int64_t channel, const float* z,
                                                           std::int64_t z_block, std::int64_t rows,
                                                           std::span<const OperandPair> pairs,
                                                           bool first, float* m,
                                                           std::int64_t m_row) {
  Vector16 sums[kCount] = {};
  for (const OperandPair& pair : pairs) {
    // Channel counts are multiples of the block size.
    const float* low = v + pair.v + channel / kLanes * v_block;
    const float* high = low + v_block;
    const float* columns = z + pair.z;
    for (std::int64_t at = 0; at < rows * kLanes; at += kLanes) {
      const Vector16 both = load_halves(columns + at, columns + z_block + at);
#pragma GCC unroll 16
      for (int c = 0; c < kCount; ++c) {
        sums[c] += fill16((c < kLanes ? low : high)[at + c % kLanes]) * both;
      }
    }
  }
  if (!first) {
#pragma GCC unroll 16
    for (int c = 0; c < kCount; ++c) sums[c] += load16(m + c * m_row);
  }
#pragma GCC unroll 16
  for (int c = 0; c < kCount; ++c) store16(m + c * m_row, sums[c]);
}

/// Channels per call of the products below, unless fewer are left.
inline std::int64_t channels_together() { return has_avx512() ? 2 * kLanes : 6; }

/// The same for the next channels, of `count` that are left, a multiple of 8.
inline void multiply_transposed(std::int64_t count, const float* v, std::int64_t v_block,
                                std::int64_t channel, const float* z, std::int64_t z_block,
                                std::int64_t rows, std::span<const OperandPair> pairs, bool first,
                                float* m, std::int64_t m_row) {
  const auto multiply = has_avx512() ? count >= 2 * kLanes ? multiply_transposed_wide_rows<16>
                                                           : multiply_transposed_wide_rows<8>
                        : count >= 6 ? multiply_transposed_rows<6>
                        : count == 4 ? multiply_transposed_rows<4>
                                     : multiply_transposed_rows<2>;
  multiply(v, v_block, channel, z, z_block, rows, pairs, first, m, m_row);
}

}  // namespace pipetrain::blocked
