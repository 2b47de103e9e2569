// gpu/halves.h for the emulator.
#pragma once

#include <cmath>

#include "tensor/tensor.h"

namespace pipetrain {

inline float from_bfloat16_bits(std::uint16_t bits) { return bfloat16_to_float(bits); }
inline std::uint16_t to_bfloat16_bits(float value) { return float_to_bfloat16(value); }
inline float from_half_bits(std::uint16_t bits) { return half_to_float(bits); }
inline std::uint16_t to_half_bits(float value) { return float_to_half(value); }
inline float exp2_or_zero(float value) { return value < -126 ? 0.0F : std::exp2(value); }

}  // namespace pipetrain
