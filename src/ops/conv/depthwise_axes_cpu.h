// How the axes of a depthwise convolution are taken apart: what a tap reads for which outputs, and
// how many rows are computed at a time. Include it from *_cpu.cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/conv/depthwise_cpu.h"

namespace pipetrain::depthwise_rows {

constexpr std::int64_t kBandFloats = 40 * 1024;  // of a band and what it is multiplied with

inline std::int64_t whole(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit;
}
inline std::int64_t floor_of(std::int64_t count, std::int64_t unit) {
  return count >= 0 ? count / unit : -whole(-count, unit);
}
inline std::int64_t floats_in_lines(std::int64_t count) { return whole(count, 16) * 16; }

/// Parts of at most `most`, as equal as can be.
struct Parts {
  Parts(std::int64_t all, std::int64_t most) : count(whole(all, most)), all(all) {}
  std::int64_t first(std::int64_t part) const { return all * part / count; }
  std::int64_t size(std::int64_t part) const { return first(part + 1) - first(part); }
  std::int64_t count, all;
};

/// Taps of an axis: what they read for outputs of a phase.
struct Place {
  std::int64_t phase, tap, place;
};
inline std::vector<Place> places_of(const WindowAxis& axis, bool input_gradient) {
  std::vector<Place> out;
  for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
    if (!input_gradient) {
      out.push_back({0, tap, tap * axis.dilation - axis.pad_begin});
      continue;
    }
    // Output p of the forward reads input p * stride - pad + tap * dilation.
    for (std::int64_t phase = 0; phase < axis.stride; ++phase) {
      const std::int64_t read = phase + axis.pad_begin - tap * axis.dilation;
      if (floor_of(read, axis.stride) * axis.stride == read)
        out.push_back({phase, tap, read / axis.stride});
    }
  }
  return out;
}

inline DepthwiseAxis axis_of(const WindowAxis& axis, bool input_gradient,
                             const std::vector<Place>& places) {
  DepthwiseAxis out{axis.input, axis.output, 1, axis.stride, 0, 0};
  if (input_gradient) out = {axis.output, axis.input, axis.stride, 1, 0, 0};
  const auto [least, most] =
      std::minmax_element(places.begin(), places.end(),
                          [](const Place& a, const Place& b) { return a.place < b.place; });
  if (!places.empty()) out.first = least->place, out.last = most->place;
  return out;
}

/// Rows of the source for so many rows of a phase.
inline std::int64_t source_rows(const DepthwiseAxis& rows, std::int64_t count) {
  return (count - 1) * rows.step + rows.last - rows.first + 1;
}

/// The most rows, at least one, for which a band of such rows stays in the cache.
inline std::int64_t band_of(std::int64_t rows, std::int64_t fixed_floats,
                            std::int64_t floats_of_row) {
  const std::int64_t most = (kBandFloats - fixed_floats) / floats_of_row;
  const std::int64_t bands = whole(rows, std::clamp<std::int64_t>(most, 1, rows));
  return whole(rows, bands);
}

}  // namespace pipetrain::depthwise_rows
