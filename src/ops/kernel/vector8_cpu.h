// Vectors of 8 floats, and of 16 where there is AVX-512, as GCC and clang have them; the transpose
// of 8 of 8; and 8 floats that are stored as bfloat16. Include it from *_cpu.cpp files only.
#pragma once

#include <cstdint>

#include "base/vectors.h"

namespace pipetrain {

using Vector8 = float __attribute__((vector_size(32), aligned(4), may_alias));

inline Vector8 load8(const float* from) { return *reinterpret_cast<const Vector8*>(from); }
inline void store8(float* to, Vector8 value) { *reinterpret_cast<Vector8*>(to) = value; }
inline Vector8 fill8(float value) {
  return Vector8{value, value, value, value, value, value, value, value};
}

using Vector16 = float __attribute__((vector_size(64), aligned(4), may_alias));

/// Before a function with vectors of 16 floats, to be called only where has_avx512(), and before
/// one that multiplies bfloat16, only where has_avx512_bfloat16().
#ifdef __x86_64__
#define PIPETRAIN_AVX512 [[gnu::target("avx512f")]]
#define PIPETRAIN_BFLOAT16 [[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]]
#else
#define PIPETRAIN_AVX512
#define PIPETRAIN_BFLOAT16
#endif

[[gnu::always_inline]] PIPETRAIN_AVX512 inline Vector16 load16(const float* from) {
  return *reinterpret_cast<const Vector16*>(from);
}
[[gnu::always_inline]] PIPETRAIN_AVX512 inline void store16(float* to, const Vector16& value) {
  *reinterpret_cast<Vector16*>(to) = value;
}
[[gnu::always_inline]] PIPETRAIN_AVX512 inline Vector16 fill16(float value) {
  return Vector16{value, value, value, value, value, value, value, value,
                  value, value, value, value, value, value, value, value};
}

/// Rounds a float to bfloat16 (its upper half), to nearest, ties to even.
enum class BFloat16 : std::uint16_t {};

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
}

using Halves8 = std::uint16_t __attribute__((vector_size(16), aligned(2), may_alias));
using Bits8 = std::uint32_t __attribute__((vector_size(32)));

inline Vector8 load8(const BFloat16* from) {
  const Halves8 upper = *reinterpret_cast<const Halves8*>(from);
  return reinterpret_cast<Vector8>(__builtin_convertvector(upper, Bits8) << 16);
}
inline void store8(BFloat16* to, Vector8 value) {
  const Bits8 bits = reinterpret_cast<Bits8>(value);
  const Bits8 upper = bits >> 16;
  const Bits8 rounded = (bits + 0x7fffU + (upper & 1U)) >> 16;
  const Bits8 stored = (bits & 0x7fffffffU) > 0x7f800000U ? upper | 0x40U : rounded;
  *reinterpret_cast<Halves8*>(to) = __builtin_convertvector(stored, Halves8);
}

using Halves16 = std::uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
using Bits16 = std::uint32_t __attribute__((vector_size(64)));

[[gnu::always_inline]] PIPETRAIN_AVX512 inline Vector16 load16(const BFloat16* from) {
  const Halves16 upper = *reinterpret_cast<const Halves16*>(from);
  return reinterpret_cast<Vector16>(__builtin_convertvector(upper, Bits16) << 16);
}
[[gnu::always_inline]] PIPETRAIN_AVX512 inline void store16(BFloat16* to, const Vector16& value) {
  const auto bits = reinterpret_cast<Bits16>(value);
  const Bits16 rounded = bits + 0x7fffU + (bits >> 16 & 1U), nan = bits | 0x400000U;
  const Bits16 stored = (bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded;
  *reinterpret_cast<Halves16*>(to) = __builtin_convertvector(stored >> 16, Halves16);
}

/// Element j of rows[i] becomes element i of rows[j].
[[gnu::always_inline]] inline void transpose(Vector8 (&rows)[8]) {
  Vector8 pairs[8], quads[8];
  for (int r = 0; r < 8; r += 2) {
    pairs[r] = __builtin_shufflevector(rows[r], rows[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[r + 1] = __builtin_shufflevector(rows[r], rows[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int r = 0; r < 8; r += 4) {
    for (int half = 0; half < 2; ++half) {
      quads[r + 2 * half] =
          __builtin_shufflevector(pairs[r + half], pairs[r + 2 + half], 0, 1, 8, 9, 4, 5, 12, 13);
      quads[r + 2 * half + 1] =
          __builtin_shufflevector(pairs[r + half], pairs[r + 2 + half], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int q = 0; q < 4; ++q) {
    rows[q] = __builtin_shufflevector(quads[q], quads[q + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[q + 4] = __builtin_shufflevector(quads[q], quads[q + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

/// Transposes elements [0, depth) of 8 vectors, `stride` apart, to (depth, 8) with rows `row`
/// apart.
template <class Element>
void transpose_eight(const Element* from, std::int64_t stride, std::int64_t depth, float* to,
                     std::int64_t row) {
  std::int64_t k = 0;
  for (; k + 8 <= depth; k += 8) {
    Vector8 rows[8];
    for (int r = 0; r < 8; ++r) rows[r] = load8(from + r * stride + k);
    transpose(rows);
    for (int i = 0; i < 8; ++i) store8(to + (k + i) * row, rows[i]);
  }
  for (; k < depth; ++k) {
    for (int r = 0; r < 8; ++r) to[k * row + r] = to_float(from[r * stride + k]);
  }
}

}  // namespace pipetrain
