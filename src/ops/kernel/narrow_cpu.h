// Between the two narrow types (bfloat16, the upper half of a float, and float16) and float, eight
// elements at a time. Rounding is to nearest, ties to even; NaN stays NaN, overflow gives infinity.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace pipetrain {

/// An element of a bfloat16 tensor, converted one at a time without branches, so that a loop over
/// them becomes vector code.
struct BFloat16Bits {
  std::uint16_t bits;

  float widened() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  static BFloat16Bits rounded(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    // Half a unit in the last place kept, less one if that bit is even: ties round to even.
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40U;
    return {static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded)};
  }
};

void widen_bfloat16(const std::uint16_t* from, float* to, std::int64_t count);
void round_to_bfloat16(const float* from, std::uint16_t* to, std::int64_t count);

void widen_float16(const std::uint16_t* from, float* to, std::int64_t count);
void round_to_float16(const float* from, std::uint16_t* to, std::int64_t count);

/// Both conversions of one of these types.
struct NarrowConversion {
  void (*widen)(const std::uint16_t*, float*, std::int64_t) = nullptr;
  void (*round)(const float*, std::uint16_t*, std::int64_t) = nullptr;

  explicit operator bool() const { return widen != nullptr; }
};
/// None for all other types.
NarrowConversion narrow_conversion(DType dtype);

}  // namespace pipetrain
