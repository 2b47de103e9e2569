#include "ops/kernel/narrow_cpu.h"

#include <bit>

#include "ops/kernel/vector8_cpu.h"

namespace pipetrain {

namespace {

/// The first multiple of 16 elements; returns their number.
PIPETRAIN_AVX512 std::int64_t widen_sixteen_by_sixteen(const std::uint16_t* from, float* to,
                                                       std::int64_t count) {
  using Bits = std::uint32_t __attribute__((vector_size(64), aligned(4), may_alias));
  using Halves = std::uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    *reinterpret_cast<Bits*>(to + i) =
        __builtin_convertvector(*reinterpret_cast<const Halves*>(from + i), Bits) << 16;
  }
  return i;
}

}  // namespace

void widen_bfloat16(const std::uint16_t* from, float* to, std::int64_t count) {
  const std::int64_t done = has_avx512() ? widen_sixteen_by_sixteen(from, to, count) : 0;
  from += done;
  to += done;
  count -= done;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i] = BFloat16Bits{from[i]}.widened();
}

namespace {

/// A vectorised version of the rounding below for the first multiple of 16 elements, four times as
/// fast; returns their number.
PIPETRAIN_AVX512 std::int64_t round_sixteen_by_sixteen(const float* from, std::uint16_t* to,
                                                       std::int64_t count) {
  using Bits = std::uint32_t __attribute__((vector_size(64), aligned(4), may_alias));
  using Halves = std::uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const Bits bits = *reinterpret_cast<const Bits*>(from + i);
    const Bits rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const Bits nan = bits | 0x400000U;
    const Bits chosen = (bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded;
    *reinterpret_cast<Halves*>(to + i) = __builtin_convertvector(chosen >> 16, Halves);
  }
  return i;
}

}  // namespace

void round_to_bfloat16(const float* from, std::uint16_t* to, std::int64_t count) {
  const std::int64_t done = has_avx512() ? round_sixteen_by_sixteen(from, to, count) : 0;
  from += done;
  to += done;
  count -= done;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i] = BFloat16Bits::rounded(from[i]).bits;
}

namespace {

constexpr std::uint32_t kSmallestNormal = 113U << 23;  // 2^-14 of float16, as a float's bits

std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
  return condition ? yes : no;
}

}  // namespace

void widen_float16(const std::uint16_t* from, float* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = from[i];
    const std::uint32_t moved = (bits & 0x7fffU) << 13;
    const std::uint32_t normal = moved + (112U << 23);  // the exponent biases are 15 and 127
    const std::uint32_t special = moved | 0x7f800000U;
    // Subnormals: set the exponent as if they had the leading 1, then subtract it.
    const auto subnormal = std::bit_cast<std::uint32_t>(
        std::bit_cast<float>(moved + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal));
    const std::uint32_t magnitude =
        choose(moved < (1U << 23), subnormal, choose(moved >= (31U << 23), special, normal));
    to[i] = std::bit_cast<float>(magnitude | (bits & 0x8000U) << 16);
  }
}

void round_to_float16(const float* from, std::uint16_t* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    // As in round_to_bfloat16(), dropping 13 bits; a carry may give infinity.
    const std::uint32_t normal =
        (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // The unit in the last place of 0.5 is that of float16 subnormals, 2^-24: the addition rounds.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
        std::bit_cast<std::uint32_t>(0.5F);
    const std::uint32_t special = choose(magnitude > 0x7f800000U, 0x7e00U, 0x7c00U);
    const std::uint32_t rounded = choose(magnitude < kSmallestNormal, subnormal,
                                         choose(magnitude >= (143U << 23), special, normal));
    to[i] = static_cast<std::uint16_t>(rounded | (bits >> 16 & 0x8000U));
  }
}

NarrowConversion narrow_conversion(DType dtype) {
  if (dtype == DType::kBFloat16) return {widen_bfloat16, round_to_bfloat16};
  if (dtype == DType::kFloat16) return {widen_float16, round_to_float16};
  return {};
}

}  // namespace pipetrain
