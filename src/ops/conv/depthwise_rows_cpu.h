// Rows of feature maps as vectors of neighbouring channels, whatever their layout: from a tensor,
// with zeros around them, and back. Include it from *_cpu.cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/conv/depthwise_axes_cpu.h"
#include "ops/kernel/vector8_cpu.h"

namespace pipetrain::depthwise_rows {

constexpr std::int64_t kHalf = 8;  // channels that are moved at a time

/// A tensor (sample, channel, height, width) as it lies in memory.
template <class Element>
struct FeatureMap {
  Element* data;
  std::int64_t batch, channels, height, width, lanes;

  std::int64_t positions() const { return height * width; }
  /// Where eight channels of a sample begin.
  std::int64_t at(std::int64_t n, std::int64_t channel) const {
    return (n * channels + channel / lanes * lanes) * positions() + channel % lanes;
  }
  /// Channels of the eight from this one on that there are.
  std::int64_t present(std::int64_t channel) const {
    return std::clamp<std::int64_t>(channels - channel, 0, kHalf);
  }
};

/// Positions [0, count) of eight row-major channels to vectors `step` floats apart.
template <class Element>
void transpose_row(const FeatureMap<const Element>& map, std::int64_t from, std::int64_t present,
                   std::int64_t count, float* to, std::int64_t step) {
  const std::int64_t plane = map.positions(), end = map.batch * map.channels * plane;
  for (std::int64_t i = 0; i < count; i += kHalf) {
    const std::int64_t taken = std::min(kHalf, count - i);
    Vector8 square[kHalf] = {};
    if (from + (present - 1) * plane + i + kHalf <= end) {
      for (std::int64_t r = 0; r < present; ++r) square[r] = load8(map.data + from + r * plane + i);
    } else {
      for (std::int64_t r = 0; r < present; ++r) {
        for (std::int64_t k = 0; k < taken; ++k)
          square[r][k] = to_float(map.data[from + r * plane + i + k]);
      }
    }
    transpose(square);
    for (std::int64_t k = 0; k < taken; ++k) store8(to + (i + k) * step, square[k]);
  }
}

/// A row of a sample's channels from `channel` on, as vectors.
template <class Element>
void gather_row(const FeatureMap<const Element>& map, std::int64_t n, std::int64_t channel,
                std::int64_t row, std::int64_t step, float* to) {
  if (map.lanes == step) {
    const Element* from = map.data + map.at(n, channel) + row * map.width * step;
    for (std::int64_t i = 0; i < map.width * step; i += kHalf) store8(to + i, load8(from + i));
    return;
  }
  for (std::int64_t half = 0; half < step; half += kHalf) {
    const std::int64_t present = map.present(channel + half);
    if (present == 0) {
      for (std::int64_t i = 0; i < map.width; ++i) store8(to + i * step + half, Vector8{});
      continue;
    }
    const std::int64_t from = map.at(n, channel + half) + row * map.width * map.lanes;
    if (map.lanes == 1) {
      transpose_row(map, from, present, map.width, to + half, step);
      continue;
    }
    for (std::int64_t i = 0; i < map.width; ++i)
      store8(to + i * step + half, load8(map.data + from + i * map.lanes));
  }
}

/// The other way round.
template <class Element>
void scatter_row(const FeatureMap<Element>& map, std::int64_t n, std::int64_t channel,
                 std::int64_t row, std::int64_t step, const float* from) {
  if (map.lanes == step) {
    Element* to = map.data + map.at(n, channel) + row * map.width * step;
    for (std::int64_t i = 0; i < map.width * step; i += kHalf) store8(to + i, load8(from + i));
    return;
  }
  for (std::int64_t half = 0; half < step; half += kHalf) {
    const std::int64_t present = map.present(channel + half);
    if (present == 0) break;
    Element* to = map.data + map.at(n, channel + half) + row * map.width * map.lanes;
    if (map.lanes > 1) {
      for (std::int64_t i = 0; i < map.width; ++i)
        store8(to + i * map.lanes, load8(from + i * step + half));
      continue;
    }
    const std::int64_t plane = map.positions();
    for (std::int64_t i = 0; i < map.width; i += kHalf) {
      const std::int64_t taken = std::min(kHalf, map.width - i);
      Vector8 square[kHalf] = {};
      for (std::int64_t k = 0; k < taken; ++k) square[k] = load8(from + (i + k) * step + half);
      transpose(square);
      for (std::int64_t r = 0; r < present; ++r) {
        Element* line = to + r * plane + i;
        if (taken == kHalf) {
          store8(line, square[r]);
          continue;
        }
        Element rounded[kHalf];
        store8(rounded, square[r]);
        for (std::int64_t k = 0; k < taken; ++k) line[k] = rounded[k];
      }
    }
  }
}

/// A rectangle of positions, which may reach beyond the feature map.
struct Rectangle {
  std::int64_t top, rows, left, columns;
};

/// A rectangle as vectors, zeros where there is nothing.
template <class Element>
void gather(const FeatureMap<const Element>& map, std::int64_t n, std::int64_t channel,
            const Rectangle& part, std::int64_t step, float* to) {
  const std::int64_t row_floats = part.columns * step;
  // As the rectangles of all callers: whole rows and what is beside them.
  const std::int64_t before = -part.left * step, behind = before + map.width * step;
  for (std::int64_t row = part.top; row < part.top + part.rows; ++row, to += row_floats) {
    if (row < 0 || row >= map.height) {
      std::fill_n(to, row_floats, 0.0F);
      continue;
    }
    std::fill(to, to + before, 0.0F);
    std::fill(to + behind, to + row_floats, 0.0F);
    gather_row(map, n, channel, row, step, to + before);
  }
}

}  // namespace pipetrain::depthwise_rows
