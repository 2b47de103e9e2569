// What a product on tiles (ops/matmul/tile_product_cpu.h) needs of the processor: AMX, AVX-512 with
// bfloat16, or the same in portable code, which tests run anywhere. A tile is 16 × 16 packed
// elements of 32 bits, 1 KiB; each is a pair of bfloat16 numbers that are adjacent along k. Include
// it from *_cpu.cpp files and tests only.
#pragma once

#include <cstdint>

namespace pipetrain::tiles {

constexpr std::int64_t kSide = 16;          // rows or columns of a tile
constexpr std::int64_t kStep = 32;          // its elements along k
constexpr std::int64_t kTile = 16 * kStep;  // its elements

/// Up to three panels of tiles, `distance` elements apart. The tiles of a panel follow each other
/// along k, or begin where `tiles` says, in elements from the panel's begin on.
struct Panels {
  const std::uint16_t* first;
  std::int64_t distance;
  const std::int64_t* tiles = nullptr;  // only for operand a of MultiplyTiles

  std::int64_t tile(std::int64_t step) const { return tiles ? tiles[step] : step * kTile; }
};

/// sums (rows `stride` floats apart) = (or +=) a b. A tile of a has a row in each of its lines, one
/// of b a pair of rows in each.
using MultiplyTiles = void (*)(std::int64_t steps, const Panels& a, const Panels& b, bool add,
                               float* sums, std::int64_t stride);

/// Rows of a product of pairs.
constexpr std::int64_t kPairRows = 8;
/// c (kPairRows rows, `stride` floats apart) = (or +=) a b. Each line of `a` has a pair of each of
/// 16 rows, of which the first kPairRows from `a` on are used; one of b a pair of each of 16
/// columns.
using MultiplyPairs = void (*)(std::int64_t pairs, const std::uint16_t* a, const Panels& b,
                               bool add, float* c, std::int64_t stride);
constexpr std::int64_t kPairPanels = 3;  // of b at most

/// Rows and columns of a block of sums, which takes up to two panels of either operand.
constexpr std::int64_t kBlock = 2 * kSide;

/// c (rows × columns, rows `stride` apart) = (or +=) a block of sums + bias.
using StoreSums = void (*)(const float* sums, std::int64_t rows, std::int64_t columns,
                           const float* bias, bool add, float* c, std::int64_t stride);
/// The same, rounded to bfloat16.
using StoreRoundedSums = void (*)(const float* sums, std::int64_t rows, std::int64_t columns,
                                  const float* bias, std::uint16_t* c, std::int64_t stride);

/// Makes pairs of lines, which have 16 elements each from `offset` on, or are zero if null: of the
/// first and second, third and fourth; `count` is even.
using InterleaveLines = void (*)(const std::uint16_t* const* lines, std::int64_t count,
                                 std::int64_t offset, std::uint16_t* to);
/// Transposes the 16 × 16 elements of 32 bits of a tile; `to` may be `from`.
using TransposeTile = void (*)(const void* from, void* to);

struct Instructions {
  void (*begin)();  // in each thread, before it multiplies
  void (*end)();
  MultiplyTiles multiply[2][2];               // by panels of a and of b, less one
  MultiplyPairs multiply_pairs[kPairPanels];  // by panels of b, less one
  StoreSums store;
  StoreRoundedSums store_rounded;
  InterleaveLines interleave;
  TransposeTile transpose;
};

/// Call it only where has_amx().
const Instructions& amx();
/// Call it only where has_avx512_bfloat16().
const Instructions& vectors();
/// The fastest of these two.
const Instructions& fastest();
const Instructions& portable();

/// The product of any number of panels.
inline void multiply_panels(const Instructions& instructions, std::int64_t rows,
                            std::int64_t columns, std::int64_t steps, const Panels& a,
                            const Panels& b, bool add, float* sums, std::int64_t stride) {
  for (std::int64_t column = 0; column < columns; column += kBlock) {
    const Panels right{b.first + column / kSide * b.distance, b.distance};
    for (std::int64_t row = 0; row < rows; row += kBlock) {
      instructions.multiply[rows - row > kSide][columns - column > kSide](
          steps, {a.first + row / kSide * a.distance, a.distance}, right, add,
          sums + row * stride + column, stride);
    }
  }
}

}  // namespace pipetrain::tiles
