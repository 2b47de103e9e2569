// Packs operands into the tiles of ops/matmul/tile_instructions_cpu.h: panels of 16 lines (rows of
// a or columns of b), each a sequence of tiles along k. What a tile has beyond the matrix is zero.
// Include it from *_cpu.cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/tile_instructions_cpu.h"

namespace pipetrain::tiles {

/// What a line of a tile is: a line of the matrix, as in a, or a pair along k, as in b.
enum class Order { kLines, kPairs };

/// Lines of a matrix of bfloat16 numbers, or of floats, which are rounded; one of the strides is 1.
template <class Element>
struct Lines {
  const Element* data;
  std::int64_t stride;    // from one line to the next
  std::int64_t k_stride;  // from one element of a line to the next

  const Element* at(std::int64_t line, std::int64_t k) const {
    return data + line * stride + k * k_stride;
  }
  /// Packs lines [first, first + lines) and k in [begin, begin + depth).
  template <Order kOrder>
  void pack(std::int64_t first, std::int64_t lines, std::int64_t begin, std::int64_t depth,
            std::uint16_t* to) const;
};

template <std::int64_t kCount>
void copy_some(const std::uint16_t* from, std::uint16_t* to) {
  std::memcpy(to, from, kCount * sizeof *to);
}
template <std::int64_t kCount>
void copy_some(const float* from, std::uint16_t* to) {
  for (std::int64_t i = 0; i < kCount; i += 8)
    store8(reinterpret_cast<BFloat16*>(to + i), load8(from + i));
}

/// `count` adjacent elements, followed by zeros up to kCount.
template <std::int64_t kCount, class Element>
[[gnu::always_inline]] inline void copy_line(const Element* from, std::int64_t count,
                                             std::uint16_t* to) {
  if (count == kCount) return copy_some<kCount>(from, to);
  Element some[kCount] = {};
  std::copy_n(from, count, some);
  copy_some<kCount>(some, to);
}

/// Makes sixteen adjacent pairs of two lines.
[[gnu::always_inline]] inline void interleave(const std::uint16_t* low, const std::uint16_t* high,
                                              std::uint16_t* to) {
  using Halves = std::uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
  const Halves a = *reinterpret_cast<const Halves*>(low),
               b = *reinterpret_cast<const Halves*>(high);
  *reinterpret_cast<Halves*>(to) =
      __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *reinterpret_cast<Halves*>(to + 16) =
      __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// Up to 16 lines that are contiguous along k, up to 32 elements of each.
template <class Element>
void copy_along(const Element* from, std::int64_t stride, std::int64_t lines, std::int64_t count,
                std::uint16_t* to) {
  for (std::int64_t line = 0; line < lines; ++line)
    copy_line<kStep>(from + line * stride, count, to + line * kStep);
  std::fill(to + lines * kStep, to + kTile, std::uint16_t{0});
}

/// Pairs of up to 32 rows along k, each with the same element of up to 16 lines.
template <class Element>
void copy_across(const Element* from, std::int64_t k_stride, std::int64_t lines, std::int64_t count,
                 std::uint16_t* to) {
  for (std::int64_t k = 0; k < kStep; k += 2) {
    std::uint16_t low[kSide] = {}, high[kSide] = {};
    if (k < count) copy_line<kSide>(from + k * k_stride, lines, low);
    if (k + 1 < count) copy_line<kSide>(from + (k + 1) * k_stride, lines, high);
    interleave(low, high, to + k * kSide);
  }
}
/// The same of a whole tile of bfloat16 numbers.
inline void copy_across(const std::uint16_t* from, std::int64_t k_stride, std::uint16_t* to) {
  for (std::int64_t k = 0; k < kStep; k += 2)
    interleave(from + k * k_stride, from + (k + 1) * k_stride, to + k * kSide);
}

/// Transposes 16 × 16 packed elements.
inline void transpose_tile(const std::uint16_t* from, std::uint16_t* to) {
  const auto* rows = reinterpret_cast<const float*>(from);
  auto* columns = reinterpret_cast<float*>(to);
  for (std::int64_t row = 0; row < kSide; row += 8) {
    for (std::int64_t column = 0; column < kSide; column += 8) {
      Vector8 block[8];
      for (std::int64_t i = 0; i < 8; ++i) block[i] = load8(rows + (row + i) * kSide + column);
      transpose(block);
      for (std::int64_t i = 0; i < 8; ++i) store8(columns + (column + i) * kSide + row, block[i]);
    }
  }
}

template <Order kOrder, class Element>
void pack_tile(const Lines<Element>& source, std::int64_t first, std::int64_t lines,
               std::int64_t begin, std::int64_t count, std::uint16_t* to) {
  alignas(64) std::uint16_t turned[kTile];
  const Element* from = source.at(first, begin);
  const bool along = source.k_stride == 1;
  const bool turns = along != (kOrder == Order::kLines);
  std::uint16_t* const direct = turns ? turned : to;
  if (along) {
    copy_along(from, source.stride, lines, count, direct);
  } else if (std::is_same_v<Element, std::uint16_t> && lines == kSide && count == kStep) {
    copy_across(reinterpret_cast<const std::uint16_t*>(from), source.k_stride, direct);
  } else {
    copy_across(from, source.k_stride, lines, count, direct);
  }
  if (turns) transpose_tile(turned, to);
}

constexpr std::int64_t tiles_along(std::int64_t k) { return (k + kStep - 1) / kStep; }

/// Panels that lie side by side are packed together, so that whole cache lines are read.
template <class Element>
template <Order kOrder>
void Lines<Element>::pack(std::int64_t first, std::int64_t lines, std::int64_t begin,
                          std::int64_t depth, std::uint16_t* to) const {
  constexpr std::int64_t kTogether = 8;
  const std::int64_t panels = (lines + kSide - 1) / kSide, tiles = tiles_along(depth);
  const std::int64_t group = k_stride == 1 ? 1 : kTogether;
  for (std::int64_t together = 0; together < panels; together += group) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (std::int64_t p = together; p < std::min(panels, together + group); ++p) {
        pack_tile<kOrder>(*this, first + p * kSide, std::min(kSide, lines - p * kSide),
                          begin + tile * kStep, std::min(kStep, depth - tile * kStep),
                          to + (p * tiles + tile) * kTile);
      }
    }
  }
}

}  // namespace pipetrain::tiles
