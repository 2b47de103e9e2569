#include "ops/matmul/tile_instructions_cpu.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <bit>

#include "ops/kernel/narrow_cpu.h"
#include "ops/kernel/vector8_cpu.h"

namespace pipetrain::tiles {
namespace {

// --- portable ---

float product_of_pairs(std::uint16_t a, std::uint16_t b) {
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
      for (std::int64_t step = 0; step < steps; ++step, left += kTile, right += kTile) {
        for (std::int64_t k = 0; k < kStep; ++k)
          sum += product_of_pairs(left[k], right[k / 2 * kStep + k % 2]);
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

void nothing() {}

#ifdef __x86_64__

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
  for (std::int64_t at = 0; at < steps * kTile; at += kTile) {
    _tile_loadd(6, top + at, kLine);
    _tile_loadd(4, left + at, kLine);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColumns > 1) {
      _tile_loadd(7, right + at, kLine);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, lower + at, kLine);
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

PIPETRAIN_BFLOAT16 void store_amx(const float* sums, std::int64_t rows, std::int64_t columns,
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

PIPETRAIN_BFLOAT16 void store_rounded_amx(const float* sums, std::int64_t rows,
                                          std::int64_t columns, const float* bias, std::uint16_t* c,
                                          std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, sums += kBlock, c += stride) {
    for (std::int64_t column = 0; column < columns; column += kSide) {
      const __mmask16 some = first_of(columns - column);
      const __m512 sum = with_bias(sums + column, bias ? bias + column : nullptr, some);
      _mm256_mask_storeu_epi16(c + column, some,
                               reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
    }
  }
}

#endif

}  // namespace

const Instructions& portable() {
  static constexpr Instructions kPortable{nothing,
                                          nothing,
                                          {{multiply_portable<1, 1>, multiply_portable<1, 2>},
                                           {multiply_portable<2, 1>, multiply_portable<2, 2>}},
                                          store_portable,
                                          store_rounded_portable};
  return kPortable;
}

const Instructions& amx() {
#ifdef __x86_64__
  static constexpr Instructions kAmx{
      configure,
      release,
      {{multiply_amx<1, 1>, multiply_amx<1, 2>}, {multiply_amx<2, 1>, multiply_amx<2, 2>}},
      store_amx,
      store_rounded_amx};
  return kAmx;
#else
  return portable();  // has_amx() is false
#endif
}

}  // namespace pipetrain::tiles
