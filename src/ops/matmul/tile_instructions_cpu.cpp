#include "ops/matmul/tile_instructions_cpu.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <bit>
#include <cstring>

#include "base/vectors.h"
#include "ops/kernel/narrow_cpu.h"
#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/tile_packing_cpu.h"

namespace pipetrain::tiles {
namespace {

// --- portable ---

float product(std::uint16_t a, std::uint16_t b) {
  const auto widened = [](std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  };
  return widened(a) * widened(b);
}

template <int kRows, int kColumns>
void multiply_portable(std::int64_t steps, const Panels& a, const Panels& b, bool add, float* sums,
                       std::int64_t stride) {
  for (std::int64_t row = 0; row < kRows * kSide; ++row) {
    for (std::int64_t column = 0; column < kColumns * kSide; ++column) {
      const std::uint16_t* left = a.first + row / kSide * a.distance + row % kSide * kStep;
      const std::uint16_t* right = b.first + column / kSide * b.distance + column % kSide * 2;
      float& to = sums[row * stride + column];
      float sum = add ? to : 0.0F;
      for (std::int64_t step = 0; step < steps; ++step, right += kTile) {
        for (std::int64_t k = 0; k < kStep; ++k)
          sum += product(left[a.tile(step) + k], right[k / 2 * kStep + k % 2]);
      }
      to = sum;
    }
  }
}

void store_portable(const float* sums, std::int64_t rows, std::int64_t columns, const float* bias,
                    bool add, float* c, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, sums += kBlock, c += stride) {
    for (std::int64_t column = 0; column < columns; ++column)
      c[column] = sums[column] + (bias ? bias[column] : 0.0F) + (add ? c[column] : 0.0F);
  }
}

void store_rounded_portable(const float* sums, std::int64_t rows, std::int64_t columns,
                            const float* bias, std::uint16_t* c, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, sums += kBlock, c += stride) {
    float line[kBlock];
    for (std::int64_t column = 0; column < columns; ++column)
      line[column] = sums[column] + (bias ? bias[column] : 0.0F);
    round_to_bfloat16(line, c, columns);
  }
}

template <int kPanels>
void multiply_pairs_portable(std::int64_t pairs, const std::uint16_t* a, const Panels& b, bool add,
                             float* c, std::int64_t stride) {
  for (std::int64_t i = 0; i < kPairRows; ++i) {
    for (std::int64_t j = 0; j < kPanels * kSide; ++j) {
      const std::uint16_t* right = b.first + j / kSide * b.distance + j % kSide * 2;
      float sum = 0;
      for (std::int64_t k = 0; k < pairs * kStep; k += kStep) {
        for (std::int64_t half = 0; half < 2; ++half)
          sum += product(a[k + 2 * i + half], right[k + half]);
      }
      float& to = c[i * stride + j];
      to = add ? to + sum : sum;
    }
  }
}

void interleave_portable(const std::uint16_t* const* lines, std::int64_t count, std::int64_t offset,
                         std::uint16_t* to) {
  static constexpr std::uint16_t kZeros[kSide] = {};
  for (std::int64_t i = 0; i < count; i += 2, to += kStep)
    interleave(lines[i] ? lines[i] + offset : kZeros, lines[i + 1] ? lines[i + 1] + offset : kZeros,
               to);
}

void transpose_portable(const void* from, void* to) {
  alignas(64) std::uint16_t tile[kTile];
  std::memcpy(tile, from, sizeof tile);
  transpose_tile(tile, static_cast<std::uint16_t*>(to));
}

void nothing() {}

#ifdef __x86_64__

// --- AVX-512 with bfloat16 ---

/// A block of rows at a time, as many as leave registers for the columns.
template <int kRows, int kColumns>
PIPETRAIN_BFLOAT16 void multiply_vectors(std::int64_t steps, const Panels& a, const Panels& b,
                                         bool add, float* sums, std::int64_t stride) {
  constexpr int kGroup = kColumns > 1 ? 8 : 16;
  for (std::int64_t row = 0; row < kRows * kSide; row += kGroup) {
    const std::uint16_t* left = a.first + row / kSide * a.distance + row % kSide * kStep;
    const std::uint16_t* right = b.first;
    float* const to = sums + row * stride;
    __m512 held[kGroup][kColumns];
#pragma GCC unroll 16
    for (int i = 0; i < kGroup; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kColumns; ++j)
        held[i][j] = add ? _mm512_loadu_ps(to + i * stride + j * kSide) : _mm512_setzero_ps();
    }
    for (std::int64_t step = 0; step < steps; ++step, right += kTile) {
      const std::uint16_t* const tile = left + a.tile(step);
      for (std::int64_t pair = 0; pair < kSide; ++pair) {
        __m512bh columns[kColumns];
#pragma GCC unroll 2
        for (int j = 0; j < kColumns; ++j)
          columns[j] =
              reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + j * b.distance + pair * kStep));
#pragma GCC unroll 16
        for (int i = 0; i < kGroup; ++i) {
          std::int32_t both = 0;
          std::memcpy(&both, tile + i * kStep + 2 * pair, sizeof both);
          const auto line = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
#pragma GCC unroll 2
          for (int j = 0; j < kColumns; ++j)
            held[i][j] = _mm512_dpbf16_ps(held[i][j], line, columns[j]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kGroup; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kColumns; ++j) _mm512_storeu_ps(to + i * stride + j * kSide, held[i][j]);
    }
  }
}

template <int kPanels>
PIPETRAIN_BFLOAT16 void multiply_pairs(std::int64_t pairs, const std::uint16_t* a, const Panels& b,
                                       bool add, float* c, std::int64_t stride) {
  __m512 sums[kPairRows][kPanels];
  const std::uint16_t* right = b.first;
#pragma GCC unroll 8
  for (int i = 0; i < kPairRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kPanels; ++j) {
      __builtin_prefetch(c + i * stride + j * kSide, 1);
      sums[i][j] = _mm512_setzero_ps();
    }
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair, a += kStep, right += kStep) {
    __m512bh columns[kPanels];
#pragma GCC unroll 3
    for (int j = 0; j < kPanels; ++j)
      columns[j] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + j * b.distance));
#pragma GCC unroll 8
    for (int i = 0; i < kPairRows; ++i) {
      std::int32_t both = 0;
      std::memcpy(&both, a + 2 * i, sizeof both);
      const auto line = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
#pragma GCC unroll 3
      for (int j = 0; j < kPanels; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], line, columns[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPairRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kPanels; ++j) {
      float* const to = c + i * stride + j * kSide;
      _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sums[i][j]) : sums[i][j]);
    }
  }
}

// --- AMX ---

/// The operand of LDTILECFG: eight whole tiles.
struct alignas(64) Configuration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr Configuration kWholeTiles;

[[gnu::target("amx-tile")]] void configure() { _tile_loadconfig(&kWholeTiles); }
[[gnu::target("amx-tile")]] void release() { _tile_release(); }

/// Tells the compiler that the tile instructions, which it takes for ones without memory operands,
/// read and write memory.
[[gnu::always_inline]] inline void order_memory() { __asm__ volatile("" ::: "memory"); }

// Tiles 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b.
template <int kRows, int kColumns>
[[gnu::target("amx-tile,amx-bf16")]] void multiply_amx(std::int64_t steps, const Panels& a,
                                                       const Panels& b, bool add, float* sums,
                                                       std::int64_t stride) {
  constexpr std::int64_t kLine = kTile / kSide * sizeof(std::uint16_t);
  const std::int64_t line = stride * static_cast<std::int64_t>(sizeof(float));
  float* const below = sums + kSide * stride;
  const std::uint16_t *left = a.first, *lower = left + a.distance;
  const std::uint16_t *top = b.first, *right = top + b.distance;
  order_memory();
  if (add) {
    _tile_loadd(0, sums, line);
    if constexpr (kColumns > 1) _tile_loadd(1, sums + kSide, line);
    if constexpr (kRows > 1) _tile_loadd(2, below, line);
    if constexpr (kRows * kColumns > 2) _tile_loadd(3, below + kSide, line);
  } else {
    _tile_zero(0);
    if constexpr (kColumns > 1) _tile_zero(1);
    if constexpr (kRows > 1) _tile_zero(2);
    if constexpr (kRows * kColumns > 2) _tile_zero(3);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t of_a = a.tile(step), of_b = step * kTile;
    _tile_loadd(6, top + of_b, kLine);
    _tile_loadd(4, left + of_a, kLine);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColumns > 1) {
      _tile_loadd(7, right + of_b, kLine);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, lower + of_a, kLine);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kRows * kColumns > 2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, line);
  if constexpr (kColumns > 1) _tile_stored(1, sums + kSide, line);
  if constexpr (kRows > 1) _tile_stored(2, below, line);
  if constexpr (kRows * kColumns > 2) _tile_stored(3, below + kSide, line);
  order_memory();
}

/// The mask of the first elements of a vector.
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline __mmask16 first_of(std::int64_t count) {
  return static_cast<__mmask16>(count < kSide ? (1U << count) - 1 : 0xffffU);
}
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline __m512 with_bias(const float* sums,
                                                                  const float* bias,
                                                                  __mmask16 some) {
  const __m512 sum = _mm512_loadu_ps(sums);
  return bias ? _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, bias)) : sum;
}

PIPETRAIN_BFLOAT16 void store_vectors(const float* sums, std::int64_t rows, std::int64_t columns,
                                      const float* bias, bool add, float* c, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, sums += kBlock, c += stride) {
    for (std::int64_t column = 0; column < columns; column += kSide) {
      const __mmask16 some = first_of(columns - column);
      __m512 sum = with_bias(sums + column, bias ? bias + column : nullptr, some);
      if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, c + column));
      _mm512_mask_storeu_ps(c + column, some, sum);
    }
  }
}

PIPETRAIN_BFLOAT16 void store_rounded_vectors(const float* sums, std::int64_t rows,
                                              std::int64_t columns, const float* bias,
                                              std::uint16_t* c, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, sums += kBlock, c += stride) {
    for (std::int64_t column = 0; column < columns; column += kSide) {
      const __mmask16 some = first_of(columns - column);
      const __m512 sum = with_bias(sums + column, bias ? bias + column : nullptr, some);
      _mm256_mask_storeu_epi16(c + column, some,
                               reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
    }
  }
}

PIPETRAIN_BFLOAT16 void interleave_vectors(const std::uint16_t* const* lines, std::int64_t count,
                                           std::int64_t offset, std::uint16_t* to) {
  static constexpr std::uint16_t kZeros[kSide] = {};
  alignas(64) static constexpr std::uint16_t kPairs[kStep] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i pairs = _mm512_load_si512(kPairs);
  const auto line = [&](std::int64_t i) {
    return reinterpret_cast<const __m256i*>(lines[i] ? lines[i] + offset : kZeros);
  };
  constexpr std::int64_t kAhead = 64;  // lines, which mostly follow each other in memory
  for (std::int64_t i = 0; i < count; i += 2, to += kStep) {
    if (lines[i] && lines[i + 1] == lines[i] + kSide) {
      const std::uint16_t* const from = lines[i] + offset;
      __builtin_prefetch(from + kAhead * kSide);
      _mm512_storeu_si512(
          to, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, pairs, _mm512_loadu_si512(from)));
      continue;
    }
    __builtin_prefetch(reinterpret_cast<const std::uint16_t*>(line(i)) + kAhead * kSide);
    const __m512i first = _mm512_maskz_broadcast_i64x4(0x0f, _mm256_loadu_si256(line(i)));
    const __m512i both = _mm512_mask_broadcast_i64x4(first, 0xf0, _mm256_loadu_si256(line(i + 1)));
    _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, pairs, both));
  }
}

/// The same 128 bits of four rows, four apart.
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline __m512 lanes_of(const float* rows) {
  constexpr std::int64_t kApart = 4 * kSide;
  const __m512 first = _mm512_maskz_broadcast_f32x4(0x000f, _mm_loadu_ps(rows));
  const __m512 two = _mm512_mask_broadcast_f32x4(first, 0x00f0, _mm_loadu_ps(rows + kApart));
  const __m512 three = _mm512_mask_broadcast_f32x4(two, 0x0f00, _mm_loadu_ps(rows + 2 * kApart));
  return _mm512_mask_broadcast_f32x4(three, 0xf000, _mm_loadu_ps(rows + 3 * kApart));
}

/// The lower, or upper, two elements of each 128 bits of both, in turn.
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline __m512d lower_of(const __m512& a,
                                                                  const __m512& b) {
  return reinterpret_cast<__m512d>(_mm512_maskz_unpacklo_ps(0xffff, a, b));
}
[[gnu::always_inline]] PIPETRAIN_BFLOAT16 inline __m512d upper_of(const __m512& a,
                                                                  const __m512& b) {
  return reinterpret_cast<__m512d>(_mm512_maskz_unpackhi_ps(0xffff, a, b));
}

PIPETRAIN_BFLOAT16 void transpose_vectors(const void* from, void* to) {
  const auto* rows = static_cast<const float*>(from);
  auto* columns = static_cast<float*>(to);
  __m512 lanes[kSide];
  for (std::int64_t i = 0; i < kSide; ++i) lanes[i] = lanes_of(rows + i % 4 * kSide + i / 4 * 4);
  constexpr __mmask8 kAll = 0xff;
  for (std::int64_t i = 0; i < kSide; i += 4, columns += 4 * kSide) {
    const __m512d low = lower_of(lanes[i], lanes[i + 1]), high = upper_of(lanes[i], lanes[i + 1]),
                  lower = lower_of(lanes[i + 2], lanes[i + 3]),
                  higher = upper_of(lanes[i + 2], lanes[i + 3]);
    _mm512_storeu_pd(columns, _mm512_maskz_unpacklo_pd(kAll, low, lower));
    _mm512_storeu_pd(columns + kSide, _mm512_maskz_unpackhi_pd(kAll, low, lower));
    _mm512_storeu_pd(columns + 2 * kSide, _mm512_maskz_unpacklo_pd(kAll, high, higher));
    _mm512_storeu_pd(columns + 3 * kSide, _mm512_maskz_unpackhi_pd(kAll, high, higher));
  }
}

#endif

}  // namespace

const Instructions& portable() {
  static constexpr Instructions kPortable{
      nothing,
      nothing,
      {{multiply_portable<1, 1>, multiply_portable<1, 2>},
       {multiply_portable<2, 1>, multiply_portable<2, 2>}},
      {multiply_pairs_portable<1>, multiply_pairs_portable<2>, multiply_pairs_portable<3>},
      store_portable,
      store_rounded_portable,
      interleave_portable,
      transpose_portable};
  return kPortable;
}

const Instructions& vectors() {
#ifdef __x86_64__
  static constexpr Instructions kVectors{nothing,
                                         nothing,
                                         {{multiply_vectors<1, 1>, multiply_vectors<1, 2>},
                                          {multiply_vectors<2, 1>, multiply_vectors<2, 2>}},
                                         {multiply_pairs<1>, multiply_pairs<2>, multiply_pairs<3>},
                                         store_vectors,
                                         store_rounded_vectors,
                                         interleave_vectors,
                                         transpose_vectors};
  return kVectors;
#else
  return portable();  // has_avx512_bfloat16() is false
#endif
}

const Instructions& fastest() { return has_amx() ? amx() : vectors(); }

const Instructions& amx() {
#ifdef __x86_64__
  static constexpr Instructions kAmx{
      configure,
      release,
      {{multiply_amx<1, 1>, multiply_amx<1, 2>}, {multiply_amx<2, 1>, multiply_amx<2, 2>}},
      {multiply_pairs<1>, multiply_pairs<2>, multiply_pairs<3>},
      store_vectors,
      store_rounded_vectors,
      interleave_vectors,
      transpose_vectors};
  return kAmx;
#else
  return portable();  // has_amx() is false
#endif
}

}  // namespace pipetrain::tiles
