// Between the two narrow types (bfloat16, the upper half of a float, and float16) and float, eight
// elements at a time. Rounding is to nearest, ties to even; NaN stays NaN, overflow gives infinity.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace pipetrain {

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
