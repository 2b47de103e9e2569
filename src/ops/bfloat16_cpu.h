// Between bfloat16 (the upper half of a float) and float, eight numbers at a time.
#pragma once

#include <cstdint>

namespace pipetrain {

void widen_bfloat16(const std::uint16_t* from, float* to, std::int64_t count);
/// Rounds to nearest, ties to even; a NaN stays one.
void round_to_bfloat16(const float* from, std::uint16_t* to, std::int64_t count);

}  // namespace pipetrain
