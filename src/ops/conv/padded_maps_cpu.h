// Feature maps in blocks of 16 channels whose rows and samples follow each other with zeros between
// them, so many that windows of stride 1 find what a tap reads at the same distance everywhere: a
// map is packed once for all taps. Include it from *_cpu.cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/conv/tile_convolution_cpu.h"
#include "ops/kernel/window.h"
#include "ops/matmul/tile_instructions_cpu.h"

namespace pipetrain {

/// An axis of a map and of the windows on it, which have stride 1. Tap t of window i reads position
/// i + first_tap + t * tap_step of the map.
struct PaddedAxis {
  std::int64_t map, windows, taps;
  std::int64_t first_tap, tap_step;

  std::int64_t tap(std::int64_t t) const { return first_tap + t * tap_step; }
  std::int64_t lowest() const { return std::min(tap(0), tap(taps - 1)); }
  std::int64_t highest() const { return std::max(tap(0), tap(taps - 1)); }
  /// The positions with zeros behind them that serve as those before the next row, too.
  std::int64_t padded() const {
    const std::int64_t before = -lowest(), behind = windows + highest() - map;
    return std::max(windows, map + std::max({std::int64_t{0}, before, behind}));
  }
};

/// Positions of all samples on one line.
struct PaddedMaps {
  static constexpr std::int64_t kTogether = 64;  // positions that are looked up at a time

  /// Of a forward pass and a weight gradient: the windows of y on x; of an input gradient: those of
  /// x on dy.
  PaddedMaps(const TileConvolution& shape, bool input_gradient)
      : batch(shape.batch),
        rows(axis_of(shape.rows, input_gradient)),
        columns(axis_of(shape.columns, input_gradient)) {}
  static PaddedAxis axis_of(const WindowAxis& axis, bool input_gradient) {
    if (input_gradient)
      return {axis.output, axis.input, axis.kernel, axis.pad_begin, -axis.dilation};
    return {axis.input, axis.output, axis.kernel, -axis.pad_begin, axis.dilation};
  }

  std::int64_t batch;
  PaddedAxis rows, columns;

  std::int64_t width() const { return columns.padded(); }
  std::int64_t plane() const { return rows.padded() * width(); }
  std::int64_t positions() const { return batch * plane(); }
  /// At most a third as many zeros as windows.
  bool adds_few_zeros() const { return 3 * plane() <= 4 * rows.windows * columns.windows; }
  /// How far from a window a tap reads.
  std::int64_t tap(std::int64_t t) const {
    return rows.tap(t / columns.taps) * width() + columns.tap(t % columns.taps);
  }
  std::int64_t lowest_tap() const { return rows.lowest() * width() + columns.lowest(); }
  /// From the lowest tap to the highest.
  std::int64_t reach() const { return rows.highest() * width() + columns.highest() - lowest_tap(); }
};

/// The maps that windows read, or the maps of which each position is a window.
struct PaddedSource {
  using Bits = std::uint16_t;  // of a bfloat16

  const Bits* maps;
  std::int64_t channels, height, width;

  std::int64_t block() const { return height * width * tiles::kSide; }

  /// Finds the first 16 channels of `count` positions of the line, null where zeros are; blocks of
  /// channels are block() apart.
  void find(const PaddedMaps& line, std::int64_t begin, std::int64_t count, const Bits** to) const {
    const std::int64_t plane = line.plane(), across = line.width();
    while (count > 0) {
      std::int64_t some = count, filled = 0;
      if (begin < 0) {
        some = std::min(count, -begin);
      } else if (begin < line.positions()) {
        const std::int64_t row = begin % plane / across, column = begin % across;
        some = std::min(count, across - column);
        if (row < height) filled = std::clamp(width - column, std::int64_t{0}, some);
        const Bits* const first = maps + begin / plane * channels * height * width +
                                  (row * width + column) * tiles::kSide;
        for (std::int64_t i = 0; i < filled; ++i) to[i] = first + i * tiles::kSide;
      }
      std::fill(to + filled, to + some, nullptr);
      to += some;
      begin += some;
      count -= some;
    }
  }
};

}  // namespace pipetrain
