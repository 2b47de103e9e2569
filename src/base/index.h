// Conversions of indices and counts.
#pragma once

#include <concepts>
#include <cstddef>

namespace pipetrain {

/// A non-negative integer as std::size_t, for containers.
template <std::signed_integral Index>
constexpr std::size_t at(Index index) {
  return static_cast<std::size_t>(index);
}

/// ⌈a / b⌉ for a >= 0, b > 0.
constexpr int ceil_divide(int a, int b) { return (a + b - 1) / b; }

}  // namespace pipetrain
