#include "pipeline/transport/narrow_floats.h"

#include <algorithm>
#include <bit>

namespace pipetrain {
namespace {

/// Without a branch, so that loops over it are vectorized.
std::uint32_t rounded(std::uint32_t bits) {
  const bool is_nan = (bits & 0x7fff'ffffU) > 0x7f80'0000U;
  const std::uint32_t quiet = bits | 0x40'0000U;
  const std::uint32_t nearest = bits + 0x7fffU + ((bits >> 16) & 1U);
  return (is_nan ? quiet : nearest) & 0xffff'0000U;
}

}  // namespace

void round_to_bfloat16(std::span<float> values) {
  for (float& value : values)
    value = std::bit_cast<float>(rounded(std::bit_cast<std::uint32_t>(value)));
}

void pack_bfloat16(std::span<const float> values, std::vector<std::uint16_t>& out) {
  out.resize(values.size());
  std::ranges::transform(values, out.begin(), [](float value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  });
}

void unpack_bfloat16(std::span<const std::uint16_t> values, std::vector<float>& out) {
  out.resize(values.size());
  std::ranges::transform(values, out.begin(), [](std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  });
}

}  // namespace pipetrain
