// The operands of convolutions on tiles (ops/conv/tile_convolution_cpu.h), which are gathered from
// maps in blocks of 16 channels while they are packed. Include it from *_cpu.cpp files only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "ops/kernel/window.h"
#include "ops/matmul/tile_packing_cpu.h"

namespace pipetrain {

/// The numbers that the taps of windows read from a map in blocks of 16 channels, as a matrix: a
/// row for each window of all samples, a column for each channel of each tap. Of a forward pass the
/// windows stand at the positions of y and read x; of an input gradient they stand at those of x
/// and read dy, where a tap reads the one output that it contributes to, and have stride 1.
struct Windows {
  using Bits = std::uint16_t;  // of a bfloat16
  static constexpr std::int64_t kSide = tiles::kSide;

  const tiles::Instructions& instructions;
  const Bits* map;
  std::int64_t channels, positions, width;  // of the map
  WindowAxis rows, columns;
  bool transposed;

  std::int64_t across() const { return transposed ? columns.input : columns.output; }
  std::int64_t down() const { return transposed ? rows.input : rows.output; }

  /// Where a window stands.
  struct Spot {
    const Bits* sample;
    std::int64_t row, column;
  };
  Spot spot(std::int64_t window) const {
    const std::int64_t per_sample = across() * down(), place = window % per_sample;
    return {map + window / per_sample * channels * positions, place / across(), place % across()};
  }

  /// Where the taps of windows read along an axis: at window * step + offset, if that is in [0,
  /// size).
  struct Places {
    std::int64_t step, offset, size;
    bool has(std::int64_t window) const {
      const std::int64_t at = window * step + offset;
      return at >= 0 && at < size;
    }
  };
  Places places(const WindowAxis& axis, std::int64_t tap) const {
    if (transposed) return {1, axis.pad_begin - tap * axis.dilation, axis.output};
    return {axis.stride, tap * axis.dilation - axis.pad_begin, axis.input};
  }

  /// Finds the first 16 channels that a tap of `count` windows reads, null outside; blocks of
  /// channels are positions * 16 apart. Goes to the window behind them.
  void find(Spot& spot, std::int64_t count, std::int64_t tap, const Bits** to) const {
    const Places down_map = places(rows, tap / columns.kernel);
    const Places along = places(columns, tap % columns.kernel);
    while (count > 0) {
      const std::int64_t some = std::min(count, across() - spot.column);
      const bool inside = down_map.has(spot.row);
      const std::int64_t row = spot.row * down_map.step + down_map.offset;
      const Bits* const line = spot.sample + row * width * kSide;
      for (std::int64_t i = 0; i < some; ++i) {
        const std::int64_t at = (spot.column + i) * along.step + along.offset;
        to[i] = inside && at >= 0 && at < along.size ? line + at * kSide : nullptr;
      }
      to += some;
      count -= some;
      spot.column += some;
      if (spot.column < across()) continue;
      spot.column = 0;
      if (++spot.row < down()) continue;
      spot.row = 0;
      spot.sample += channels * positions;
    }
  }

  template <tiles::Order kOrder>
  void pack(std::int64_t first, std::int64_t lines, std::int64_t begin, std::int64_t depth,
            Bits* to) const;
};

/// Blocks of 16 channels in the order of the columns: tap after tap.
class ChannelBlocks {
 public:
  ChannelBlocks(const Windows& windows, std::int64_t column)
      : per_tap_(windows.channels / Windows::kSide),
        tap_(column / windows.channels),
        block_(column % windows.channels / Windows::kSide) {}
  std::int64_t tap() const { return tap_; }
  std::int64_t block() const { return block_; }
  void next() {
    if (++block_ < per_tap_) return;
    block_ = 0;
    ++tap_;
  }

 private:
  std::int64_t per_tap_, tap_, block_;
};

/// Lines are windows; k is a column.
template <>
inline void Windows::pack<tiles::Order::kLines>(std::int64_t first, std::int64_t lines,
                                                std::int64_t begin, std::int64_t depth,
                                                Bits* to) const {
  constexpr std::int64_t kStep = tiles::kStep, kBlockBytes = kSide * sizeof(Bits);
  const std::int64_t tile_count = tiles::tiles_along(depth), end = tile_count * kStep;
  const std::int64_t last = rows.kernel * columns.kernel - 1;
  for (std::int64_t panel = 0; panel < lines; panel += kSide, to += tile_count * tiles::kTile) {
    const Spot start = spot(first + panel);
    std::array<const Bits*, kSide> from{};
    std::int64_t tap = -1;
    ChannelBlocks blocks(*this, begin);
    for (std::int64_t k = 0; k < end; k += kSide, blocks.next()) {
      Bits* line = to + k / kStep * tiles::kTile + k % kStep;
      if (k >= depth) from = {};
      if (k < depth && tap != blocks.tap()) {
        tap = blocks.tap();
        Spot place = start;
        find(place, std::min(kSide, lines - panel), tap, from.data());
      }
      const std::int64_t offset = blocks.block() * positions * kSide;
      // The next panels of this block are elsewhere than its next block.
      if (tap == last && from[0]) {
        for (std::int64_t i = 0; i < kSide; i += 2)
          __builtin_prefetch(from[0] + offset + (2 * kSide + i) * kSide);
      }
      for (const Bits* numbers : from) {
        if (numbers) {
          std::memcpy(line, numbers + offset, kBlockBytes);
        } else {
          std::memset(line, 0, kBlockBytes);
        }
        line += kStep;
      }
    }
  }
}

/// Lines are columns; k is a window.
template <>
inline void Windows::pack<tiles::Order::kPairs>(std::int64_t first, std::int64_t lines,
                                                std::int64_t begin, std::int64_t depth,
                                                Bits* to) const {
  const std::int64_t tile_count = tiles::tiles_along(depth), end = tile_count * tiles::kStep;
  const Spot start = spot(begin);
  ChannelBlocks blocks(*this, first);
  // The columns of a tap lie side by side: its windows are looked up once for all.
  constexpr std::int64_t kTogether = 64;
  for (std::int64_t line = 0; line < lines;) {
    const std::int64_t tap = blocks.tap(), block = blocks.block();
    std::int64_t panels = 0;
    for (; line < lines && blocks.tap() == tap; line += kSide, ++panels) blocks.next();
    Spot place = start;
    for (std::int64_t k = 0; k < end; k += kTogether) {
      std::array<const Bits*, kTogether> from{};
      find(place, std::clamp(depth - k, std::int64_t{0}, kTogether), tap, from.data());
      for (std::int64_t p = 0; p < panels; ++p) {
        instructions.interleave(from.data(), std::min(kTogether, end - k),
                                (block + p) * positions * kSide,
                                to + p * tile_count * tiles::kTile + k * kSide);
      }
    }
    to += panels * tile_count * tiles::kTile;
  }
}

/// Windows of one position, at all positions of a map.
inline Windows windows_of_one(const tiles::Instructions& instructions, const Windows::Bits* map,
                              std::int64_t channels, std::int64_t positions) {
  const WindowAxis row, column{positions, 1, 1, 1, 0, 0, positions};
  return {instructions, map, channels, positions, positions, row, column, /*transposed=*/false};
}

/// A map as a matrix whose lines are channels, and whose k are the positions of all samples:
/// windows of one position, transposed.
struct Channels {
  const tiles::Instructions& instructions;
  const Windows::Bits* map;
  std::int64_t channels, positions;

  template <tiles::Order kOrder>
  void pack(std::int64_t first, std::int64_t lines, std::int64_t begin, std::int64_t depth,
            Windows::Bits* to) const {
    static_assert(kOrder == tiles::Order::kLines);
    windows_of_one(instructions, map, channels, positions)
        .pack<tiles::Order::kPairs>(first, lines, begin, depth, to);
    const std::int64_t elements =
        (lines + tiles::kSide - 1) / tiles::kSide * tiles::tiles_along(depth) * tiles::kTile;
    for (Windows::Bits* tile = to; tile < to + elements; tile += tiles::kTile)
      instructions.transpose(tile, tile);
  }
};

}  // namespace pipetrain
