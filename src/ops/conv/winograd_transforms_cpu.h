// Winograd's points, how they lie in memory, and the transforms of weights. Include it from
// winograd_vectors_cpu.h only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "ops/conv/winograd_shape.h"
#include "ops/kernel/vector8_cpu.h"

namespace pipetrain::winograd {

constexpr std::int64_t kPanel = 16;  // output channels that lie together in transformed weights
constexpr int kPointsOfLine = 6, kPoints = kPointsOfLine * kPointsOfLine;  // of the weights

// The denominators of the interpolation are part of the inputs' transform: where transforms are a
// notable part of the work, there are fewer inputs than weights or outputs.

/// F(4, 3): interpolation points ±kA and ±kB beside 0 and infinity.
namespace unstrided {
constexpr float kA = 0.625F, kB = 1.5F;
constexpr float kA2 = kA * kA, kB2 = kB * kB;
constexpr float kSum = kA2 + kB2, kProduct = kA2 * kB2;
constexpr float kScale0 = 1 / kProduct;
constexpr float kScaleA = 1 / (2 * kA2 * (kA2 - kB2));
constexpr float kScaleB = 1 / (2 * kB2 * (kB2 - kA2));
}  // namespace unstrided

/// F(4, 2): ±kA, ±kB and infinity. The sixth point of a line is the middle weight.
namespace strided {
constexpr float kA = 0.5F, kB = 1.25F;
constexpr float kA2 = kA * kA, kB2 = kB * kB;
constexpr float kSum = kA2 + kB2, kProduct = kA2 * kB2;
constexpr float kScaleA = 1 / (2 * kA * (kA2 - kB2));
constexpr float kScaleB = 1 / (2 * kB * (kB2 - kA2));
}  // namespace strided

/// A number of a transformed tile, and the point of the weights that it is multiplied by.
struct Slot {
  int index, point;
  bool first_of_point;  // those of a point follow each other
};

/// The numbers of a tile of kLine x kLine, point by point. Those of a line from the sixth on belong
/// to the sixth point.
template <int kLine>
constexpr std::array<Slot, kLine * kLine> slots_by_point() {
  std::array<Slot, kLine* kLine> slots = {};
  const auto point_of = [](int i) { return i < kPointsOfLine ? i : kPointsOfLine - 1; };
  std::size_t next = 0;
  for (int point = 0; point < kPoints; ++point) {
    bool first = true;
    for (int i = 0; i < kLine; ++i) {
      for (int j = 0; j < kLine; ++j) {
        if (kPointsOfLine * point_of(i) + point_of(j) != point) continue;
        slots[next++] = {kLine * i + j, point, first};
        first = false;
      }
    }
  }
  return slots;
}
template <int kLine>
inline constexpr auto kSlotsByPoint = slots_by_point<kLine>();

template <int kLine>
std::span<const Slot> slots_of_point(std::int64_t point) {
  const auto& slots = kSlotsByPoint<kLine>;
  const auto begin = std::ranges::lower_bound(slots, point, {}, &Slot::point);
  return {begin, std::ranges::upper_bound(slots, point, {}, &Slot::point)};
}

/// A map of blocks of channels and how tiles cover its convolution. Windows with gaps see every
/// `dilation`-th row and column: tiles cover each such phase of the map as a map of its own.
struct FeatureMap {
  std::int64_t channels, height, width;
  std::int64_t tile_rows, tile_columns;  // of a phase
  std::int64_t pad_top, pad_left;        // by which the first tile begins above and left of a phase
  std::int64_t lanes, dilation;
  std::int64_t slices, slice_stride;  // for slice_position()

  /// From one column, or row, of a phase to the next.
  std::int64_t step() const { return dilation * lanes; }
  std::int64_t row_step() const { return dilation * width * lanes; }
  /// From one slice to the next.
  std::int64_t slice_step() const { return height * width * lanes; }
  /// Where a slice lies among the transformed ones.
  std::int64_t position(std::int64_t slice) const {
    return slice_position(slices, slice_stride, slice);
  }
};

/// A tile, and the phase that it covers: where that begins in the map, and its size.
struct Tile {
  std::int64_t image, row, column;
  std::int64_t top, left, height, width;

  /// Address of the phase's first position in a channel that is the first of a vector, in the first
  /// slice.
  std::int64_t phase(const FeatureMap& map, std::int64_t channel) const {
    const std::int64_t lanes = map.lanes, block = image * map.channels + channel / lanes * lanes;
    return block * map.slices * map.height * map.width + (top * map.width + left) * lanes +
           channel % lanes;
  }
};
inline Tile tile_at(const FeatureMap& map, std::int64_t index) {
  const std::int64_t columns = map.tile_columns, rows = map.tile_rows, d = map.dilation;
  const std::int64_t phase = index / (rows * columns), top = phase / d % d, left = phase % d;
  return {phase / (d * d),
          index / columns % rows,
          index % columns,
          top,
          left,
          (map.height - top + d - 1) / d,
          (map.width - left + d - 1) / d};
}

/// Transformed tiles in blocks of as many channels as a vector has lanes: tile t of the block from
/// channel c is at i * stride + c * tiles + t * lanes for slot i. Of volumes, `count` tiles of each
/// slice follow each other: t is position * count + tile. Slots are an odd number of cache lines
/// apart, so that their stores do not meet in one set.
struct Points {
  float* data;
  std::int64_t tiles;  // of all slices
  std::int64_t stride;

  float* at(std::int64_t slot, std::int64_t channel) const {
    return data + slot * stride + channel * tiles;
  }
  /// Between adjacent blocks of channels.
  std::int64_t block(std::int64_t lanes) const { return lanes * tiles; }
};
inline std::int64_t slot_stride(std::int64_t channels, std::int64_t tiles) {
  return (channels / 16 * tiles | 1) * 16;
}
inline Points points_at(float* data, std::int64_t channels, std::int64_t tiles) {
  return {data, tiles, slot_stride(channels, tiles)};
}

// One-dimensional transforms of weights. Vectors of `from` and `to` are `step` and `to_step` apart.

/// G: 3 weights → 6 points.
template <bool kStrided>
[[gnu::always_inline]] inline void weight_line(const Vector8* w, int step, Vector8* to,
                                               int to_step) {
  const Vector8 w0 = w[0], w1 = w[step], w2 = w[2 * step];
  if constexpr (kStrided) {
    using namespace strided;
    const Vector8 far_a = kA * w2, far_b = kB * w2;
    to[0] = w0 + far_a;
    to[to_step] = w0 - far_a;
    to[2 * to_step] = w0 + far_b;
    to[3 * to_step] = w0 - far_b;
    to[4 * to_step] = w2;
    to[5 * to_step] = w1;
  } else {
    using namespace unstrided;
    const Vector8 even_a = w0 + kA2 * w2, odd_a = kA * w1;
    const Vector8 even_b = w0 + kB2 * w2, odd_b = kB * w1;
    to[0] = w0;
    to[to_step] = even_a + odd_a;
    to[2 * to_step] = even_a - odd_a;
    to[3 * to_step] = even_b + odd_b;
    to[4 * to_step] = even_b - odd_b;
    to[5 * to_step] = w2;
  }
}

/// G': 6 points → 3 weight gradients.
template <bool kStrided>
[[gnu::always_inline]] inline void weight_gradient_line(const Vector8* u, int step, Vector8* to,
                                                        int to_step) {
  if constexpr (kStrided) {
    using namespace strided;
    to[0] = u[0] + u[step] + (u[2 * step] + u[3 * step]);
    to[to_step] = u[5 * step];
    to[2 * to_step] = kA * (u[0] - u[step]) + kB * (u[2 * step] - u[3 * step]) + u[4 * step];
  } else {
    using namespace unstrided;
    const Vector8 sum_a = u[step] + u[2 * step], sum_b = u[3 * step] + u[4 * step];
    to[0] = u[0] + sum_a + sum_b;
    to[to_step] = kA * (u[step] - u[2 * step]) + kB * (u[3 * step] - u[4 * step]);
    to[2 * to_step] = kA2 * sum_a + kB2 * sum_b + u[5 * step];
  }
}

/// Transformed weights: of point p, input channel c, output channel k at
/// p * weight_stride + (k / 16 * inputs + c) * 16 + k % 16. Points do not meet in one cache set.
constexpr std::int64_t weight_stride(std::int64_t inputs, std::int64_t outputs) {
  return inputs * outputs + kPanel;
}

/// The weight of (output k, input c) lies at data[k * k_stride + c * c_stride], its nine elements
/// in order or, for the input gradient, reversed. Packed ones (packed_convolution_cpu.h) lie in
/// order at data[k / 16 * 16 * k_stride + c * c_stride + k % 16], 16 floats apart. Depth taps are
/// tap_step apart; the first is at data + first_tap.
template <class Element>
struct Weights {
  const Element* data;
  std::int64_t k_stride, c_stride;
  bool reversed, packed;
  std::int64_t first_tap, tap_step;

  /// Those of a depth tap.
  Weights at(const DepthTap& tap) const {
    Weights weights = *this;
    weights.data += first_tap + tap.tap * tap_step;
    return weights;
  }
};

/// The windows from input channel `c` to 8 output channels from `k`.
template <class Element>
[[gnu::always_inline]] inline void load_windows(const Weights<Element>& w, std::int64_t k,
                                                std::int64_t c, Vector8 (&windows)[9]) {
  if (w.packed) {
    const Element* from = w.data + k / kPanel * kPanel * w.k_stride + c * w.c_stride + k % kPanel;
    for (int i = 0; i < 9; ++i) windows[i] = load8(from + i * kPanel);
    return;
  }
  const Element* from = w.data + k * w.k_stride + c * w.c_stride;
  Vector8 rows[8], last;
  for (int lane = 0; lane < 8; ++lane) {
    rows[lane] = load8(from + lane * w.k_stride);
    last[lane] = to_float(from[lane * w.k_stride + 8]);
  }
  transpose(rows);
  for (int i = 0; i < 8; ++i) windows[w.reversed ? 8 - i : i] = rows[i];
  windows[w.reversed ? 0 : 8] = last;
}

/// Transforms panel `panel` of 16 output channels to (input channel, 16), points `stride` apart,
/// for `inputs` channels from `begin`. A stride that is an integral constant saves a fifth.
template <bool kStrided, class Element, class Stride>
void transform_weights(const Weights<Element>& w, std::int64_t begin, std::int64_t inputs,
                       std::int64_t panel, float* to, Stride stride) {
  for (std::int64_t c = 0; c < inputs; ++c) {
    for (std::int64_t half = 0; half < kPanel; half += 8) {
      Vector8 weights[9];
      load_windows(w, panel * kPanel + half, begin + c, weights);
      Vector8 lines[18];  // [row of the window][point]
      for (int i = 0; i < 3; ++i) weight_line<kStrided>(weights + 3 * i, 1, lines + 6 * i, 1);
      float* target = to + c * kPanel + half;
      for (int j = 0; j < 6; ++j) {
        Vector8 points[6];
        weight_line<kStrided>(lines + j, 6, points, 1);
        for (int i = 0; i < 6; ++i) store8(target + (6 * i + j) * stride, points[i]);
      }
    }
  }
}

}  // namespace pipetrain::winograd
