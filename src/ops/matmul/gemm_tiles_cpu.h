// The micro-kernels of ops/matmul/gemm_cpu.h: up to 12 rows and 32 columns of c from packed panels
// (ops/matmul/gemm_packing_cpu.h). Include it from gemm_cpu.cpp only.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/matmul/gemm_packing_cpu.h"

namespace pipetrain::gemm_panels {

template <int kCount>
[[gnu::always_inline]] inline void rank1_update(const float* a, const float* b,
                                                Vector (&low)[kCount], Vector (&high)[kCount]) {
  const Vector b_low = load8(b), b_high = load8(b + kLanes);
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
    const Vector factor = fill8(a[r]);
    low[r] += factor * b_low;
    high[r] += factor * b_high;
  }
}

// A tile prefetches one cache line per this many k-steps; this many tiles prefetch a whole panel.
constexpr std::int64_t kPrefetchSteps = 4;

/// c[0..kCount)[0..16) = (or +=) a b; a packed (depth, 6), b packed (depth, 16). With kPrefetch a
/// quarter of a panel from `next` on is prefetched to the L2 cache.
template <int kCount, bool kPrefetch>
void multiply(std::int64_t depth, const float* a, const float* b,
              [[maybe_unused]] const float* next, const float* bias, bool add, float* c,
              std::int64_t row) {
  Vector low[kCount] = {}, high[kCount] = {};
  for (std::int64_t r = 0; r < kCount; ++r) {
    __builtin_prefetch(c + r * row, 1);
    __builtin_prefetch(c + r * row + kColumns - 1, 1);
  }
  if constexpr (kPrefetch) {
    for (std::int64_t i = 0; i < depth; next += kColumns) {
      __builtin_prefetch(next, 0, 2);
      const std::int64_t end = std::min(depth, i + kPrefetchSteps);
#pragma GCC unroll 4
      for (; i < end; ++i, a += kRows, b += kColumns) rank1_update(a, b, low, high);
    }
  } else {
#pragma GCC unroll 4
    for (std::int64_t i = 0; i < depth; ++i, a += kRows, b += kColumns)
      rank1_update(a, b, low, high);
  }
  if (bias) {
    const Vector bias_low = load8(bias), bias_high = load8(bias + kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      low[r] += bias_low;
      high[r] += bias_high;
    }
  }
  if (add) {
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      low[r] += load8(c + r * row);
      high[r] += load8(c + r * row + kLanes);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
    store8(c + r * row, low[r]);
    store8(c + r * row + kLanes, high[r]);
  }
}

template <bool kPrefetch>
void multiply(std::int64_t rows, std::int64_t depth, const float* a, const float* b,
              const float* next, const float* bias, bool add, float* c, std::int64_t row) {
  switch (rows) {
    case 1:
      return multiply<1, kPrefetch>(depth, a, b, next, bias, add, c, row);
    case 2:
      return multiply<2, kPrefetch>(depth, a, b, next, bias, add, c, row);
    case 3:
      return multiply<3, kPrefetch>(depth, a, b, next, bias, add, c, row);
    case 4:
      return multiply<4, kPrefetch>(depth, a, b, next, bias, add, c, row);
    case 5:
      return multiply<5, kPrefetch>(depth, a, b, next, bias, add, c, row);
    default:
      return multiply<kRows, kPrefetch>(depth, a, b, next, bias, add, c, row);
  }
}

/// One k-step of multiply_wide(): rows from two panels of a times columns of panels of b, which are
/// `panel` floats apart.
template <int kTop, int kBottom, int kPanels>
[[gnu::always_inline]] PIPETRAIN_AVX512 inline void wide_update(
    const float* a, const float* below, const float* b, std::int64_t panel,
    Vector16 (&sums)[kTop + kBottom][kPanels]) {
  Vector16 columns[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) columns[p] = load16(b + p * panel);
#pragma GCC unroll 12
  for (int r = 0; r < kTop + kBottom; ++r) {
    const Vector16 factor = fill16(r < kTop ? a[r] : below[r - kTop]);
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) sums[r][p] += factor * columns[p];
  }
}

[[gnu::always_inline]] PIPETRAIN_AVX512 inline void store_wide(float* to, const Vector16& sum) {
  store16(to, sum);
}
/// Rounded to bfloat16.
[[gnu::always_inline]] PIPETRAIN_AVX512 inline void store_wide(std::uint16_t* to,
                                                               const Vector16& sum) {
  store16(reinterpret_cast<BFloat16*>(to), sum);
}

/// A tile of one or two panels of rows by one or two of columns with AVX-512: twice the width, and
/// the rows of both panels hide the latency. The second panel of b is at b + depth * 16. `next`: a
/// panel that is read soon, prefetched to the L2 cache with kPrefetch. Where two threads share a
/// core, the instructions that are no multiplications count: hence four k-steps at a time, and no
/// prefetch of what is there. Only a float c can be accumulated into.
template <int kTop, int kBottom, int kPanels, bool kPrefetch, class Out>
PIPETRAIN_AVX512 void multiply_wide(std::int64_t depth, const float* a, const float* b,
                                    [[maybe_unused]] const float* next, const float* bias, bool add,
                                    Out* c, std::int64_t row) {
  constexpr int kCount = kTop + kBottom, kSteps = 4;
  Vector16 sums[kCount][kPanels] = {};
  for (std::int64_t r = 0; r < kCount; ++r) {
    for (int p = 0; p < kPanels; ++p) __builtin_prefetch(c + r * row + p * kColumns, 1);
    __builtin_prefetch(c + r * row + kPanels * kColumns - 1, 1);
  }
  const float* below = a + depth * kRows;
  const std::int64_t panel = depth * kColumns;
  std::int64_t k = 0;
  for (; k + kSteps <= depth; k += kSteps) {
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      if constexpr (kPrefetch) __builtin_prefetch(next + s * kColumns, 0, 2);
      wide_update<kTop, kBottom, kPanels>(a + s * kRows, below + s * kRows, b + s * kColumns, panel,
                                          sums);
    }
    a += kSteps * kRows;
    below += kSteps * kRows;
    b += kSteps * kColumns;
    if constexpr (kPrefetch) next += kSteps * kColumns;
  }
  for (; k < depth; ++k, a += kRows, below += kRows, b += kColumns)
    wide_update<kTop, kBottom, kPanels>(a, below, b, panel, sums);
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    const Vector16 shift = bias ? load16(bias + p * kColumns) : Vector16{};
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      Out* to = c + r * row + p * kColumns;
      Vector16 sum = sums[r][p];
      if (bias) sum += shift;
      if constexpr (std::is_same_v<Out, float>) {
        if (add) sum += load16(to);
      }
      store_wide(to, sum);
    }
  }
}

template <class Out>
using WideTile = void (*)(std::int64_t depth, const float* a, const float* b, const float* next,
                          const float* bias, bool add, Out* c, std::int64_t row);

/// Heights of adjacent panels differ by at most one, the taller one first.
template <int kPanels, bool kPrefetch, class Out>
WideTile<Out> wide_tile(std::int64_t top, std::int64_t bottom) {
  static constexpr WideTile<Out> kAlone[] = {
      multiply_wide<1, 0, kPanels, kPrefetch, Out>, multiply_wide<2, 0, kPanels, kPrefetch, Out>,
      multiply_wide<3, 0, kPanels, kPrefetch, Out>, multiply_wide<4, 0, kPanels, kPrefetch, Out>,
      multiply_wide<5, 0, kPanels, kPrefetch, Out>, multiply_wide<6, 0, kPanels, kPrefetch, Out>};
  static constexpr WideTile<Out> kPairs[] = {
      multiply_wide<4, 3, kPanels, kPrefetch, Out>, multiply_wide<4, 4, kPanels, kPrefetch, Out>,
      multiply_wide<5, 4, kPanels, kPrefetch, Out>, multiply_wide<5, 5, kPanels, kPrefetch, Out>,
      multiply_wide<6, 5, kPanels, kPrefetch, Out>, multiply_wide<6, 6, kPanels, kPrefetch, Out>};
  return bottom == 0 ? kAlone[top - 1] : kPairs[top + bottom - 7];
}

#ifdef __x86_64__
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline void store_sum(float* to, __m512 sum) {
  _mm512_storeu_ps(to, sum);
}
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline void store_sum(std::uint16_t* to, __m512 sum) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
}

/// multiply_wide() for packed pairs of bfloat16. Only a float c can be accumulated into.
template <int kTop, int kBottom, int kPanels, class Out>
PIPETRAIN_BFLOAT16 void multiply_pairs(std::int64_t depth, const float* a, const float* b,
                                       const float* next, const float* bias, bool add, Out* c,
                                       std::int64_t row) {
  constexpr int kCount = kTop + kBottom;
  __m512 sums[kCount][kPanels];
#pragma GCC unroll 12
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      __builtin_prefetch(c + r * row + p * kColumns, 1);
      sums[r][p] = _mm512_setzero_ps();
    }
    __builtin_prefetch(c + r * row + kPanels * kColumns - 1, 1);
  }
  const float* below = a + depth * kRows;
  for (std::int64_t i = 0; i < depth;
       ++i, a += kRows, below += kRows, b += kColumns, next += kColumns) {
    __builtin_prefetch(next, 0, 2);
    __m512bh columns[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      columns[p] = reinterpret_cast<__m512bh>(_mm512_loadu_ps(b + p * depth * kColumns));
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      const auto factor =
          reinterpret_cast<__m512bh>(_mm512_set1_ps(r < kTop ? a[r] : below[r - kTop]));
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p)
        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], factor, columns[p]);
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    const __m512 shift = bias ? _mm512_loadu_ps(bias + p * kColumns) : _mm512_setzero_ps();
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      Out* to = c + r * row + p * kColumns;
      __m512 sum = sums[r][p];
      if (bias) sum = _mm512_add_ps(sum, shift);
      if constexpr (std::is_same_v<Out, float>) {
        if (add) sum = _mm512_add_ps(sum, _mm512_loadu_ps(to));
      }
      store_sum(to, sum);
    }
  }
}

template <int kPanels, class Out>
WideTile<Out> pairs_tile(std::int64_t top, std::int64_t bottom) {
  static constexpr WideTile<Out> kAlone[] = {
      multiply_pairs<1, 0, kPanels, Out>, multiply_pairs<2, 0, kPanels, Out>,
      multiply_pairs<3, 0, kPanels, Out>, multiply_pairs<4, 0, kPanels, Out>,
      multiply_pairs<5, 0, kPanels, Out>, multiply_pairs<6, 0, kPanels, Out>};
  static constexpr WideTile<Out> kPairs[] = {
      multiply_pairs<4, 3, kPanels, Out>, multiply_pairs<4, 4, kPanels, Out>,
      multiply_pairs<5, 4, kPanels, Out>, multiply_pairs<5, 5, kPanels, Out>,
      multiply_pairs<6, 5, kPanels, Out>, multiply_pairs<6, 6, kPanels, Out>};
  return bottom == 0 ? kAlone[top - 1] : kPairs[top + bottom - 7];
}
#else
template <int kPanels, class Out>
WideTile<Out> pairs_tile(std::int64_t, std::int64_t) {
  return nullptr;  // has_avx512_bfloat16() is false
}
#endif

/// The tile function for this number of column panels.
template <class Source, class Out, int kPanels>
WideTile<Out> tile_of(std::int64_t top, std::int64_t bottom, bool prefetches) {
  if constexpr (std::is_same_v<Source, Pairs>) {
    return pairs_tile<kPanels, Out>(top, bottom);
  } else {
    return prefetches ? wide_tile<kPanels, true, Out>(top, bottom)
                      : wide_tile<kPanels, false, Out>(top, bottom);
  }
}

/// The same for fewer than 16 columns at the right edge of c.
inline void multiply_edge(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                          const float* a, const float* b, const float* bias, bool add, float* c,
                          std::int64_t row) {
  float corner[kRows * kColumns];
  float shift[kColumns] = {};
  if (bias) std::copy_n(bias, columns, shift);
  multiply<false>(rows, depth, a, b, nullptr, shift, /*add=*/false, corner, kColumns);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < columns; ++j) {
      float& to = c[r * row + j];
      to = corner[r * kColumns + j] + (add ? to : 0.0F);
    }
  }
}

/// The same with tiles of AVX-512.
template <class Source, class Out>
void multiply_wide_edge(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* a,
                        const float* b, const float* bias, bool add, Out* c, std::int64_t row) {
  Out corner[kRows * kColumns];
  float shift[kColumns] = {};
  if (bias) std::copy_n(bias, columns, shift);
  tile_of<Source, Out, 1>(rows, 0, /*prefetches=*/false)(depth, a, b, b, shift, /*add=*/false,
                                                         corner, kColumns);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < columns; ++j) {
      Out& to = c[r * row + j];
      if constexpr (std::is_same_v<Out, float>) {
        to = corner[r * kColumns + j] + (add ? to : 0.0F);
      } else {
        to = corner[r * kColumns + j];
      }
    }
  }
}

}  // namespace pipetrain::gemm_panels
