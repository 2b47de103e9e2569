// ops/matmul/packed_product_cpu.h for bfloat16: panels of pairs that are adjacent along k
// (ops/matmul/gemm_packing_cpu.h), as the dot-product instruction takes them. Call it only where
// has_avx512_bfloat16(). Include it from *_cpu.cpp files only.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/matmul/gemm_packing_cpu.h"
#include "ops/matmul/packed_product_cpu.h"

namespace pipetrain::packed {

/// Packs columns [first, first + 16) of b as a panel; the depth is even.
inline void pack_pairs(const BFloat16Matrix& b, std::int64_t columns, std::int64_t depth,
                       std::int64_t first, float* panel) {
  using namespace gemm_panels;
  pack_columns<Pairs, Write::kCached>(b, first, std::min(packed::kColumns, columns - first), 0,
                                      depth, panel);
}

#ifdef __x86_64__
/// multiply_wide_tile() over `pairs` pairs along k.
template <int kRows>
PIPETRAIN_BFLOAT16 inline void multiply_pairs_tile(std::int64_t pairs,
                                                   const std::uint16_t* __restrict a,
                                                   std::int64_t a_stride,
                                                   const float* __restrict panel,
                                                   float* __restrict c, bool add) {
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
    sums[row] = add ? _mm512_loadu_ps(c + row * kColumns) : _mm512_setzero_ps();
  // Addresses are a pointer plus one or two strides, so that the pointers fit into registers.
  const std::uint16_t* every_third[(kRows + 2) / 3];
  for (int third = 0; 3 * third < kRows; ++third) every_third[third] = a + 3 * third * a_stride;
  for (std::int64_t k = 0; k < pairs; ++k) {
    const auto b = reinterpret_cast<__m512bh>(_mm512_loadu_ps(panel + k * kColumns));
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      int pair;
      std::memcpy(&pair, every_third[row / 3] + row % 3 * a_stride + 2 * k, sizeof pair);
      sums[row] =
          _mm512_dpbf16_ps(sums[row], reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)), b);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) _mm512_storeu_ps(c + row * kColumns, sums[row]);
}

/// c (rows × 16) = a (rows × depth) times a panel; the depth is even.
inline void multiply_pairs(std::int64_t rows, std::int64_t depth, const std::uint16_t* a,
                           std::int64_t a_stride, const float* panel, float* c) {
  static constexpr auto kTiles = []<int... kBefore>(std::integer_sequence<int, kBefore...>) {
    return std::array{&multiply_pairs_tile<kBefore + 1>...};
  }
  (std::make_integer_sequence<int, kMostWideRows>());
  const std::int64_t all = depth / 2;
  for (std::int64_t begin = 0; begin < all; begin += kDepth) {
    const std::int64_t pairs = std::min(kDepth, all - begin);
    for (std::int64_t row = 0; row < rows;) {
      const std::int64_t take = wide_rows_together(rows - row);
      kTiles[static_cast<std::size_t>(take - 1)](pairs, a + row * a_stride + 2 * begin, a_stride,
                                                 panel + begin * kColumns, c + row * kColumns,
                                                 begin > 0);
      row += take;
    }
  }
}
#else
inline void multiply_pairs(std::int64_t, std::int64_t, const std::uint16_t*, std::int64_t,
                           const float*, float*) {}
#endif

}  // namespace pipetrain::packed
