// Products of a few rows with a matrix that is reused many times, as in the steps of a recurrent
// layer and the query blocks of attention: the matrix is packed once into panels of 16 columns.
// sgemm would repack it every time, which costs a third of the product at 32 rows. Include it from
// *_cpu.cpp files only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/row_split_cpu.h"

namespace pipetrain::packed {

constexpr std::int64_t kColumns = 16;  // of a panel: two vectors of eight
constexpr std::int64_t kDepth = 256;   // of a panel, so that a block of it stays in the L1 cache

constexpr std::int64_t panels(std::int64_t columns) { return (columns + kColumns - 1) / kColumns; }

/// How far apart the rows of a left operand should be, in elements: a tile reads up to sixteen rows
/// at once, and rows a multiple of 1 KiB apart share too few sets of the first-level cache.
template <class Element = float>
constexpr std::int64_t row_stride(std::int64_t depth) {
  constexpr std::int64_t kLine = 64 / sizeof(Element);
  const std::int64_t stride = (depth + kLine - 1) / kLine * kLine;
  return stride % (16 * kLine) == 0 ? stride + kLine : stride;
}

/// Columns [first, first + 16) of the transpose of a matrix (columns × depth) whose rows are
/// `stride` elements apart, as a panel.
inline void pack_transposed(const float* rows, std::int64_t stride, std::int64_t columns,
                            std::int64_t depth, std::int64_t first, float* panel) {
  const std::int64_t count = std::min(kColumns, columns - first);
  if (count < kColumns) std::fill_n(panel, depth * kColumns, 0.0f);
  const float* from = rows + first * stride;
  std::int64_t column = 0;
  for (; column + 8 <= count; column += 8) {
    transpose_eight(from + column * stride, stride, depth, panel + column, kColumns);
  }
  for (; column < count; ++column) {
    for (std::int64_t k = 0; k < depth; ++k)
      panel[k * kColumns + column] = from[column * stride + k];
  }
}

/// Columns [first, first + 16) of a matrix (depth × columns) whose rows are `stride` elements
/// apart, as a panel.
inline void pack(const float* matrix, std::int64_t stride, std::int64_t columns, std::int64_t depth,
                 std::int64_t first, float* panel) {
  const std::int64_t count = std::min(kColumns, columns - first);
  for (std::int64_t k = 0; k < depth; ++k) {
    std::copy_n(matrix + k * stride + first, count, panel + k * kColumns);
    std::fill_n(panel + k * kColumns + count, kColumns - count, 0.0f);
  }
}

using Vector = Vector8;

/// The left operand of a product: element (row, k) is at row * stride + k, or at k * stride + row
/// when it is transposed.
enum class Left { kPlain, kTransposed };

/// c (kRows × 16) = a (kRows × depth) times a panel, added to c if `add`. All sums stay in
/// registers.
template <int kRows, Left kLeft>
inline void multiply_tile(std::int64_t depth, const float* __restrict a, std::int64_t a_stride,
                          const float* __restrict panel, float* __restrict c, std::int64_t c_stride,
                          bool add) {
  Vector left[kRows];
  Vector right[kRows];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    const auto* from = reinterpret_cast<const Vector*>(c + row * c_stride);
    left[row] = add ? from[0] : Vector{};
    right[row] = add ? from[1] : Vector{};
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const auto* b = reinterpret_cast<const Vector*>(panel + k * kColumns);
    const Vector b_left = b[0];
    const Vector b_right = b[1];
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const float x = kLeft == Left::kPlain ? a[row * a_stride + k] : a[k * a_stride + row];
      left[row] += x * b_left;
      right[row] += x * b_right;
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    auto* to = reinterpret_cast<Vector*>(c + row * c_stride);
    to[0] = left[row];
    to[1] = right[row];
  }
}

/// The same with AVX-512: a row of c is one vector.
template <int kRows, Left kLeft>
PIPETRAIN_AVX512 inline void multiply_wide_tile(std::int64_t depth, const float* __restrict a,
                                                std::int64_t a_stride,
                                                const float* __restrict panel, float* __restrict c,
                                                std::int64_t c_stride, bool add) {
  Vector16 sums[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) sums[row] = add ? load16(c + row * c_stride) : Vector16{};
  // Addresses are a pointer plus one or two strides, so that the pointers fit into registers.
  const float* every_third[(kRows + 2) / 3];
  for (int third = 0; 3 * third < kRows; ++third) every_third[third] = a + 3 * third * a_stride;
  for (std::int64_t k = 0; k < depth; ++k) {
    const Vector16 b = load16(panel + k * kColumns);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const float x = kLeft == Left::kPlain ? every_third[row / 3][row % 3 * a_stride + k]
                                            : a[k * a_stride + row];
      sums[row] += fill16(x) * b;
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) store16(c + row * c_stride, sums[row]);
}

/// One micro-kernel: rows of c, and the arguments of multiply_tile().
using Tile = void (*)(std::int64_t depth, const float* a, std::int64_t a_stride, const float* panel,
                      float* c, std::int64_t c_stride, bool add);

template <Left kLeft>
Tile tile_of(std::int64_t rows) {
  static constexpr auto kTiles = []<int... kBefore>(std::integer_sequence<int, kBefore...>) {
    return std::array{&multiply_tile<kBefore + 1, kLeft>...};
  }
  (std::make_integer_sequence<int, kMostRows>());
  return kTiles[static_cast<std::size_t>(rows - 1)];
}

template <Left kLeft>
Tile wide_tile_of(std::int64_t rows) {
  static constexpr auto kTiles = []<int... kBefore>(std::integer_sequence<int, kBefore...>) {
    return std::array{&multiply_wide_tile<kBefore + 1, kLeft>...};
  }
  (std::make_integer_sequence<int, kMostWideRows>());
  return kTiles[static_cast<std::size_t>(rows - 1)];
}

/// c (rows × 16) = a (rows × depth) times a panel, added to c if `add`. Rows of c are `c_stride`
/// elements apart.
template <Left kLeft = Left::kPlain>
inline void multiply(std::int64_t rows, std::int64_t depth, const float* a, std::int64_t a_stride,
                     const float* panel, float* c, std::int64_t c_stride = kColumns,
                     bool add = false) {
  const bool wide = has_avx512();
  for (std::int64_t begin = 0; begin < depth; begin += kDepth) {
    const std::int64_t part = std::min(kDepth, depth - begin);
    const float* from = panel + begin * kColumns;
    for (std::int64_t row = 0; row < rows;) {
      const std::int64_t take = wide ? wide_rows_together(rows - row) : rows_together(rows - row);
      const float* x =
          kLeft == Left::kPlain ? a + row * a_stride + begin : a + begin * a_stride + row;
      const Tile tile = wide ? wide_tile_of<kLeft>(take) : tile_of<kLeft>(take);
      tile(part, x, a_stride, from, c + row * c_stride, c_stride, add || begin > 0);
      row += take;
    }
  }
}

}  // namespace pipetrain::packed
