// How a matrix product is divided: parts for threads, blocks for caches. Include it from
// gemm_cpu.cpp only.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/gemm_packing_cpu.h"

namespace pipetrain::gemm_panels {

/// Blocks of a and b are for an L2 cache of 1 MiB, and twice as large where it has 2 MiB. No bit
/// depends on them.
inline std::int64_t block_factor() {
  static const bool twice = has_avx512() && ::sysconf(_SC_LEVEL2_CACHE_SIZE) >= 2L << 20;
  return twice ? 2 : 1;
}
/// BLIS's NC at most: columns of a packed block of b.
inline std::int64_t column_block() { return block_factor() * 1024; }
/// KC x NC: packed elements of that block.
inline std::int64_t packed_b_elements() { return block_factor() * 256 * 1024; }
/// BLIS's MC: rows of a packed block of a, which stays in the L2 cache.
inline std::int64_t row_block() { return has_avx512() ? block_factor() * 144 : 72; }

/// BLIS's KC: elements of k per pass, in multiples of kColumns. At most `most`; or all of k in a
/// single pass if k <= `only`, so that c is written once.
struct Pass {
  std::int64_t most, only;
};
template <class Source>
Pass pass_of();
/// A KC x 16 panel of b stays in the L1 cache; with AVX-512, whose tiles use two panels, it is
/// prefetched from the L2.
template <>
inline Pass pass_of<Floats>() {
  return has_avx512() ? Pass{384, 512} : Pass{192, 256};
}
template <>
inline Pass pass_of<Pairs>() {
  return {1024, 2048};
}
/// Longer than of Floats, since sums of several passes are rounded in a pass of their own; such
/// processors have an L2 cache of 2 MiB.
template <>
inline Pass pass_of<Widened>() {
  return {768, 1024};
}

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Splits `count` into equal chunks of at most `most`, multiples of `unit` except the last, so that
/// no short remainder is left, which would be mostly overhead.
inline std::int64_t balanced(std::int64_t count, std::int64_t most, std::int64_t unit) {
  const std::int64_t chunks = std::max<std::int64_t>(1, (count + most - 1) / most);
  return std::max(unit, round_up((count + chunks - 1) / chunks, unit));
}

template <class Source>
std::int64_t k_block_of(std::int64_t k) {
  const Pass pass = pass_of<Source>();
  return balanced(k, k <= pass.only ? pass.only : pass.most, kColumns);
}

/// The rectangle of c that one thread computes. Threads need no synchronisation; in return an
/// operand is packed once per thread that uses it.
struct Part {
  std::int64_t top, bottom, left, right;
};

/// The partition of c over threads, by rows and columns: minimises the work of the largest part,
/// with packing counted as eight multiplications per element.
struct Grid {
  std::int64_t rows, columns;  // of parts
  std::int64_t height, width;  // of a part
};
inline Grid grid_of(const GemmShape& shape, int threads) {
  constexpr std::int64_t kPacking = 8;
  Grid best{};
  std::int64_t least = 0;
  for (std::int64_t rows = 1; rows <= threads; ++rows) {
    if (threads % rows != 0) continue;
    const std::int64_t columns = threads / rows;
    const std::int64_t height = round_up((shape.m + rows - 1) / rows, kRows);
    const std::int64_t width = round_up((shape.n + columns - 1) / columns, kColumns);
    const std::int64_t work = height * width + kPacking * (height + width);
    if (best.rows > 0 && work >= least) continue;
    best = {rows, columns, height, width};
    least = work;
  }
  return best;
}
inline Part part_of(const GemmShape& shape, const Grid& grid, int thread) {
  const std::int64_t row = thread / grid.columns, column = thread % grid.columns;
  return {std::min(shape.m, row * grid.height), std::min(shape.m, (row + 1) * grid.height),
          std::min(shape.n, column * grid.width), std::min(shape.n, (column + 1) * grid.width)};
}

/// Block sizes MC (rows), NC (columns) and KC (k_block) of a thread.
struct Blocks {
  std::int64_t rows, columns, k_block;
  std::int64_t depth;  // the k-block in packed elements
  std::int64_t a_elements() const { return depth * rows + kSlack; }
  std::int64_t b_elements() const { return depth * columns; }
};
template <class Source>
Blocks blocks_of(const GemmShape& shape, const Grid& grid) {
  const std::int64_t k_block = k_block_of<Source>(shape.k), depth = packed_depth<Source>(k_block);
  const std::int64_t columns = std::clamp(
      packed_b_elements() / depth / (2 * kColumns) * (2 * kColumns), 8 * kColumns, column_block());
  return {balanced(std::min(shape.m, grid.height), row_block(), kRows),
          balanced(std::min(shape.n, grid.width), columns, kColumns), k_block, depth};
}

}  // namespace pipetrain::gemm_panels
