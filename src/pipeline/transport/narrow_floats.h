// Gradients as bfloat16: half as many bytes between processes (--compress bf16).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pipetrain {

/// Rounds every value to the nearest bfloat16, ties to even, as float_to_bfloat16() does.
void round_to_bfloat16(std::span<float> values);

/// Floats that bfloat16 holds, as such and back.
void pack_bfloat16(std::span<const float> values, std::vector<std::uint16_t>& out);
void unpack_bfloat16(std::span<const std::uint16_t> values, std::vector<float>& out);

}  // namespace pipetrain
