// Transposes tiles of 16 x 16 elements of 2 bytes in registers. Include it from *_cpu.cpp files
// only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pipetrain::transposed {

constexpr int kTile = 16;

using Row = std::uint16_t __attribute__((vector_size(2 * kTile), aligned(2), may_alias));

/// The first or second half of a and b, element by element in turn.
template <int kHalf, std::size_t... I>
[[gnu::always_inline]] inline Row zip(Row a, Row b, std::index_sequence<I...> /*lanes*/) {
  return __builtin_shufflevector(a, b, (I / 2 + kHalf * kTile / 2 + I % 2 * kTile)...);
}

/// From rows `from_stride` apart to rows `to_stride` apart: four times, each row is zipped with the
/// one half a tile further.
inline void transpose_tile(const std::uint16_t* from, std::int64_t from_stride, std::uint16_t* to,
                           std::int64_t to_stride) {
  constexpr auto kLanes = std::make_index_sequence<kTile>();
  Row rows[kTile], zipped[kTile];
  for (int i = 0; i < kTile; ++i) rows[i] = *reinterpret_cast<const Row*>(from + i * from_stride);
  for (int round = 1; round < kTile; round *= 2) {
    for (int i = 0; i < kTile / 2; ++i) {
      zipped[2 * i] = zip<0>(rows[i], rows[i + kTile / 2], kLanes);
      zipped[2 * i + 1] = zip<1>(rows[i], rows[i + kTile / 2], kLanes);
    }
    std::ranges::copy(zipped, rows);
  }
  for (int i = 0; i < kTile; ++i) *reinterpret_cast<Row*>(to + i * to_stride) = rows[i];
}

}  // namespace pipetrain::transposed
