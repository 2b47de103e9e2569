// Packing and micro-kernel of ops/matmul/gemm_split_cpu.h: panels of 32 rows of a, and of 32
// columns of b, as tiles of 16 lines with 16 pairs of bfloat16 numbers. A chunk is 32 elements
// along k; element i of a chunk is paired with element i + 16. Include it from gemm_split_cpu.cpp
// only.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/gemm_split_cpu.h"

namespace pipetrain::gemm_split_panels {

#define PIPETRAIN_SPLIT [[gnu::target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")]]

constexpr std::int64_t kLines = 16;          // of a tile
constexpr std::int64_t kChunk = 2 * kLines;  // elements of k in a tile
constexpr std::int64_t kPanel = 2 * kLines;  // rows or columns of a panel: two tiles
constexpr std::int64_t kTileBytes = kLines * 64;
constexpr std::int64_t kParts = 3;
constexpr std::int64_t kChunkBytes = kParts * 2 * kTileBytes;  // of a panel
constexpr std::int64_t kTileSums = kLines * kLines;

/// 16 lines of up to 16 numbers each, of which `count` exist.
struct Lines {
  const float* data;
  std::int64_t offsets[kLines];
  std::int64_t count, width;
};

PIPETRAIN_SPLIT inline __mmask16 mask_of(std::int64_t width) {
  const std::int64_t some = std::clamp<std::int64_t>(width, 0, kLines);
  return static_cast<__mmask16>((1U << some) - 1U);
}

[[gnu::always_inline]] PIPETRAIN_SPLIT inline void load_lines(const Lines& lines,
                                                              Vector16 (&to)[kLines]) {
  const __mmask16 mask = mask_of(lines.width);
#pragma GCC unroll 16
  for (int i = 0; i < kLines; ++i) {
    const std::int64_t offset = lines.offsets[i];
    to[i] = i < lines.count && offset >= 0
                ? reinterpret_cast<Vector16>(_mm512_maskz_loadu_ps(mask, lines.data + offset))
                : Vector16{};
  }
}

/// Element j of rows[i] becomes element i of rows[j].
[[gnu::always_inline]] PIPETRAIN_SPLIT inline void transpose(Vector16 (&rows)[kLines]) {
  Vector16 pairs[kLines], quads[kLines], halves[kLines];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const Vector16 a = rows[i], b = rows[i + 1];
    pairs[i] =
        __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    pairs[i + 1] =
        __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int at = i / 2 * 4 + i % 2;
    const Vector16 a = pairs[at], b = pairs[at + 2];
    quads[i / 2 * 4 + i % 2 * 2] =
        __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    quads[i / 2 * 4 + i % 2 * 2 + 1] =
        __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int at = i / 4 * 8 + i % 4;
    const Vector16 a = quads[at], b = quads[at + 4];
    halves[at] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    halves[at + 4] =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vector16 a = halves[i], b = halves[i + 8];
    rows[i] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    rows[i + 8] =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
}

using Bits16 = std::uint32_t __attribute__((vector_size(64), may_alias));

/// The number rounded to bfloat16, ties away from zero, as a float.
[[gnu::always_inline]] PIPETRAIN_SPLIT inline Vector16 leading_part(Vector16 value) {
  return reinterpret_cast<Vector16>((reinterpret_cast<Bits16>(value) + 0x8000U) & 0xffff0000U);
}

/// Writes line i of the tile of each part: pairs (low, high). What the first two parts leave is a
/// bfloat16 number.
[[gnu::always_inline]] PIPETRAIN_SPLIT inline void store_parts(Vector16 low, Vector16 high,
                                                               std::byte* to) {
#pragma GCC unroll 3
  for (int part = 0; part < kParts; ++part, to += 2 * kTileBytes) {
    const Vector16 low_part = part < 2 ? leading_part(low) : low;
    const Vector16 high_part = part < 2 ? leading_part(high) : high;
    *reinterpret_cast<Bits16*>(to) = reinterpret_cast<Bits16>(low_part) >> 16 |
                                     (reinterpret_cast<Bits16>(high_part) & 0xffff0000U);
    low -= low_part;
    high -= high_part;
  }
}

/// Packs one tile of each part. `first` are k-elements 0 to 15 of the chunk, `second` the others:
/// lines along k (or along rows and columns, if `turned`).
template <bool kTurned>
PIPETRAIN_SPLIT void pack_tile(const Lines& first, const Lines& second, std::byte* to) {
  Vector16 low[kLines], high[kLines];
  load_lines(first, low);
  load_lines(second, high);
  if constexpr (kTurned) {
    transpose(low);
    transpose(high);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLines; ++i) store_parts(low[i], high[i], to + i * 64);
}

[[gnu::always_inline]] inline void locate(const SplitOperand& operand, std::int64_t first,
                                          std::int64_t count, std::int64_t element,
                                          std::int64_t width, Lines& lines) {
  lines.data = operand.data;
  lines.count = std::clamp<std::int64_t>(count, 0, kLines);
  lines.width = width;
  if (lines.count > 0 && width > 0)
    operand.map->locate(first, lines.count, element / kLines, lines.offsets);
  else
    lines.count = 0;
}

/// 16 by 16 elements, zeros behind the last: lines along k, or along rows of a (columns of b),
/// which `turned` exchanges.
PIPETRAIN_SPLIT inline void load_square(const SplitOperand& operand, std::int64_t first,
                                        std::int64_t count, std::int64_t k, std::int64_t depth,
                                        bool turned, Vector16 (&to)[kLines]) {
  Lines lines;
  if (operand.lines_are_k)
    locate(operand, k, depth, first, count, lines);
  else
    locate(operand, first, count, k, depth, lines);
  load_lines(lines, to);
  if (turned) transpose(to);
}

/// Packs rows of a (columns of b) [first, first + count) and k in [begin, begin + depth) as panels,
/// `panel_bytes` apart. `first` and `begin` are multiples of 16. Lines of a tile are rows of a, or
/// elements of k of b.
template <bool kOfA>
PIPETRAIN_SPLIT void pack_panels(const SplitOperand& operand, std::int64_t first,
                                 std::int64_t count, std::int64_t begin, std::int64_t depth,
                                 std::byte* to, std::int64_t panel_bytes) {
  for (std::int64_t at = 0; at < count; at += kLines) {
    std::byte* tile = to + at / kPanel * panel_bytes + at / kLines % 2 * kTileBytes;
    const std::int64_t left = count - at;
    for (std::int64_t k = 0; k < depth; k += kChunk, tile += kChunkBytes) {
      const std::int64_t middle = k + kLines, rest = depth - k;
      Lines low, high;
      if (operand.lines_are_k) {
        locate(operand, begin + k, rest, first + at, left, low);
        locate(operand, begin + middle, rest - kLines, first + at, left, high);
      } else {
        locate(operand, first + at, left, begin + k, rest, low);
        locate(operand, first + at, left, begin + middle, rest - kLines, high);
      }
      (operand.lines_are_k == kOfA ? pack_tile<true> : pack_tile<false>)(low, high, tile);
    }
  }
}

/// 16 lines of 64 bytes in every tile.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tile registers: 0 to 3 are sums, 4 and 5 a, 6 and 7 b.
#define PIPETRAIN_LOAD_A(part)                   \
  _tile_loadd(4, a + (part)*2 * kTileBytes, 64); \
  if constexpr (kRowTiles > 1) _tile_loadd(5, a + (2 * (part) + 1) * kTileBytes, 64)
#define PIPETRAIN_LOAD_B(part)                   \
  _tile_loadd(6, b + (part)*2 * kTileBytes, 64); \
  if constexpr (kColumnTiles > 1) _tile_loadd(7, b + (2 * (part) + 1) * kTileBytes, 64)
#define PIPETRAIN_MULTIPLY()                               \
  _tile_dpbf16ps(0, 4, 6);                                 \
  if constexpr (kColumnTiles > 1) _tile_dpbf16ps(1, 4, 7); \
  if constexpr (kRowTiles > 1) _tile_dpbf16ps(2, 5, 6);    \
  if constexpr (kRowTiles > 1 && kColumnTiles > 1) _tile_dpbf16ps(3, 5, 7)

/// Cache lines that are read soon; each chunk of a product prefetches `each` of them.
struct Upcoming {
  const std::byte* lines;
  std::int64_t each;
};

/// sums = (or +=) a b over `chunks` chunks; the sums are tiles, row by row.
template <int kRowTiles, int kColumnTiles>
PIPETRAIN_SPLIT void multiply_tiles(std::int64_t chunks, const std::byte* a, const std::byte* b,
                                    Upcoming upcoming, bool add, float* sums) {
  // The compiler does not know that tile instructions read and write memory.
  __asm__ volatile("" ::: "memory");
  if (add) {
    _tile_loadd(0, sums, 64);
    if constexpr (kColumnTiles > 1) _tile_loadd(1, sums + kTileSums, 64);
    if constexpr (kRowTiles > 1) _tile_loadd(2, sums + 2 * kTileSums, 64);
    if constexpr (kRowTiles > 1 && kColumnTiles > 1) _tile_loadd(3, sums + 3 * kTileSums, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk, a += kChunkBytes, b += kChunkBytes) {
    for (std::int64_t i = 0; i < upcoming.each; ++i, upcoming.lines += 64)
      __builtin_prefetch(upcoming.lines, 0, 2);
    PIPETRAIN_LOAD_A(2);
    PIPETRAIN_LOAD_B(0);
    PIPETRAIN_MULTIPLY();
    PIPETRAIN_LOAD_A(1);
    PIPETRAIN_MULTIPLY();
    PIPETRAIN_LOAD_B(1);
    PIPETRAIN_MULTIPLY();
    PIPETRAIN_LOAD_A(0);
    PIPETRAIN_MULTIPLY();
    PIPETRAIN_LOAD_B(2);
    PIPETRAIN_MULTIPLY();
    PIPETRAIN_LOAD_B(0);
    PIPETRAIN_MULTIPLY();
  }
  _tile_stored(0, sums, 64);
  if constexpr (kColumnTiles > 1) _tile_stored(1, sums + kTileSums, 64);
  if constexpr (kRowTiles > 1) _tile_stored(2, sums + 2 * kTileSums, 64);
  if constexpr (kRowTiles > 1 && kColumnTiles > 1) _tile_stored(3, sums + 3 * kTileSums, 64);
  __asm__ volatile("" ::: "memory");
}
#undef PIPETRAIN_LOAD_A
#undef PIPETRAIN_LOAD_B
#undef PIPETRAIN_MULTIPLY

}  // namespace pipetrain::gemm_split_panels
