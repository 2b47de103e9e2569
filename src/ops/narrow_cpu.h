// Between the two narrow types (bfloat16, the upper half of a float, and float16) and float, eight
// numbers at a time. Rounding is to nearest, ties to even; a NaN stays one, and what is too large
// becomes infinite.
#pragma once

#include <cstdint>

namespace pipetrain {

void widen_bfloat16(const std::uint16_t* from, float* to, std::int64_t count);
void round_to_bfloat16(const float* from, std::uint16_t* to, std::int64_t count);

void widen_float16(const std::uint16_t* from, float* to, std::int64_t count);
void round_to_float16(const float* from, std::uint16_t* to, std::int64_t count);

}  // namespace pipetrain
