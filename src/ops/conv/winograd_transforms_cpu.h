// Winograd's transforms F(4x4, 3x3): of inputs, outputs, gradients and weights between channel
// blocks and points. Include it from winograd_cpu.cpp only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain::winograd {

using Vector = Vector8;

using blocked::kLanes;
using blocked::kPanel;       // output channels of one inner loop of the products
constexpr int kPoints = 36;  // of the transformed tile: 6 x 6

// Interpolation points ±kA and ±kB beside 0 and infinity.
constexpr float kA = 0.625F, kB = 1.5F;
constexpr float kA2 = kA * kA, kB2 = kB * kB;
constexpr float kSum = kA2 + kB2, kProduct = kA2 * kB2;
// Of the points, by which one of the three transforms must multiply: the inputs', since there are
// few of them where transforms are a notable part of the work.
constexpr float kScale0 = 1 / kProduct;
constexpr float kScaleA = 1 / (2 * kA2 * (kA2 - kB2));
constexpr float kScaleB = 1 / (2 * kB2 * (kB2 - kA2));

// One-dimensional transforms. `from` and `to` are vectors `step` apart.

/// B', scaled: 6 inputs → 6 points.
[[gnu::always_inline]] inline void input_line(const Vector* d, int step, Vector* to, int to_step) {
  const Vector d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step],
               d5 = d[5 * step];
  const Vector even_a = kScaleA * d4 - (kScaleA * kB2) * d2;
  const Vector odd_a = (kScaleA * kA) * d3 - (kScaleA * kA * kB2) * d1;
  const Vector even_b = kScaleB * d4 - (kScaleB * kA2) * d2;
  const Vector odd_b = (kScaleB * kB) * d3 - (kScaleB * kB * kA2) * d1;
  to[0] = d0 - (kScale0 * kSum) * d2 + kScale0 * d4;
  to[to_step] = even_a + odd_a;
  to[2 * to_step] = even_a - odd_a;
  to[3 * to_step] = even_b + odd_b;
  to[4 * to_step] = even_b - odd_b;
  to[5 * to_step] = d5 - kSum * d3 + kProduct * d1;
}

/// A': 6 points → 4 outputs.
[[gnu::always_inline]] inline void output_line(const Vector* m, int step, Vector* to, int to_step) {
  const Vector sum_a = m[step] + m[2 * step], difference_a = kA * (m[step] - m[2 * step]);
  const Vector sum_b = m[3 * step] + m[4 * step];
  const Vector difference_b = kB * (m[3 * step] - m[4 * step]);
  to[0] = m[0] + sum_a + sum_b;
  to[to_step] = difference_a + difference_b;
  to[2 * to_step] = kA2 * sum_a + kB2 * sum_b;
  to[3 * to_step] = kA2 * difference_a + kB2 * difference_b + m[5 * step];
}

/// A: 4 output gradients → 6 points.
[[gnu::always_inline]] inline void gradient_line(const Vector* d, int step, Vector* to,
                                                 int to_step) {
  const Vector d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
  const Vector even_a = d0 + kA2 * d2, odd_a = kA * (d1 + kA2 * d3);
  const Vector even_b = d0 + kB2 * d2, odd_b = kB * (d1 + kB2 * d3);
  to[0] = d0;
  to[to_step] = even_a + odd_a;
  to[2 * to_step] = even_a - odd_a;
  to[3 * to_step] = even_b + odd_b;
  to[4 * to_step] = even_b - odd_b;
  to[5 * to_step] = d3;
}

/// G: 3 weights → 6 points.
[[gnu::always_inline]] inline void weight_line(const Vector* w, int step, Vector* to, int to_step) {
  const Vector w0 = w[0], w1 = w[step], w2 = w[2 * step];
  const Vector even_a = w0 + kA2 * w2, odd_a = kA * w1;
  const Vector even_b = w0 + kB2 * w2, odd_b = kB * w1;
  to[0] = w0;
  to[to_step] = even_a + odd_a;
  to[2 * to_step] = even_a - odd_a;
  to[3 * to_step] = even_b + odd_b;
  to[4 * to_step] = even_b - odd_b;
  to[5 * to_step] = w2;
}

/// G': 6 points → 3 weight gradients.
[[gnu::always_inline]] inline void weight_gradient_line(const Vector* u, int step, Vector* to,
                                                        int to_step) {
  const Vector sum_a = u[step] + u[2 * step], sum_b = u[3 * step] + u[4 * step];
  to[0] = u[0] + sum_a + sum_b;
  to[to_step] = kA * (u[step] - u[2 * step]) + kB * (u[3 * step] - u[4 * step]);
  to[2 * to_step] = kA2 * sum_a + kB2 * sum_b + u[5 * step];
}

/// A map of blocks of channels and how tiles of 4x4 cover its convolution.
struct FeatureMap {
  std::int64_t channels, height, width;
  std::int64_t tile_rows, tile_columns;
  std::int64_t pad_top, pad_left;  // positions that the first tile begins above and left of it
  std::int64_t lanes;

  std::int64_t at(std::int64_t image, std::int64_t block) const {
    return blocked::ChannelBlocks{channels, height * width, lanes}.at(image, block);
  }
};

struct Tile {
  std::int64_t image, row, column;
};
inline Tile tile_at(const FeatureMap& map, std::int64_t index) {
  const std::int64_t columns = map.tile_columns, rows = map.tile_rows;
  return {index / (rows * columns), index / columns % rows, index % columns};
}

/// Transformed tiles: of point p, channel block b, tile t at p * point + (b * tiles + t) * 8. The
/// points are an odd number of cache lines apart, so that their stores do not meet in one set.
struct Points {
  float* data;
  std::int64_t tiles;
  std::int64_t point;
};
inline std::int64_t point_stride(std::int64_t channels, std::int64_t tiles) {
  return channels * tiles + 16;
}
inline std::int64_t points_floats(std::int64_t channels, std::int64_t tiles) {
  return kPoints * point_stride(channels, tiles);
}
inline Points points_at(float* data, std::int64_t channels, std::int64_t tiles) {
  return {data, tiles, point_stride(channels, tiles)};
}

/// B' x B for tiles [first, first + count) of channel block `block`.
template <class Element>
void transform_input(const FeatureMap& map, const Element* x, std::int64_t block,
                     std::int64_t first, std::int64_t count, const Points& to) {
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const std::int64_t top = 4 * tile.row - map.pad_top;
    const std::int64_t left = 4 * tile.column - map.pad_left;
    const Element* from = x + map.at(tile.image, block);
    Vector lines[36];  // [row][point]
    if (top >= 0 && left >= 0 && top + 6 <= map.height && left + 6 <= map.width) {
      const Element* corner = from + (top * map.width + left) * map.lanes;
      for (int i = 0; i < 6; ++i) {
        const Element* row = corner + i * map.width * map.lanes;
        Vector inputs[6];
        for (int j = 0; j < 6; ++j) inputs[j] = load8(row + j * map.lanes);
        input_line(inputs, 1, lines + 6 * i, 1);
      }
    } else {
      for (int i = 0; i < 6; ++i) {
        const std::int64_t y = top + i;
        Vector inputs[6] = {};
        if (y >= 0 && y < map.height) {
          for (int j = 0; j < 6; ++j) {
            const std::int64_t at = left + j;
            if (at >= 0 && at < map.width) {
              inputs[j] = load8(from + (y * map.width + at) * map.lanes);
            }
          }
        }
        input_line(inputs, 1, lines + 6 * i, 1);
      }
    }
    float* target = to.data + (block * to.tiles + t) * kLanes;
    for (int j = 0; j < 6; ++j) {
      Vector points[6];
      input_line(lines + j, 6, points, 1);
      for (int i = 0; i < 6; ++i) store8(target + (6 * i + j) * to.point, points[i]);
    }
  }
}

/// y = A' m A + bias for tiles [first, first + count) of channel block `block`, which is block
/// `from_block` of m.
template <class Element>
void transform_output(const FeatureMap& map, const Points& from, std::int64_t from_block,
                      std::int64_t block, std::int64_t first, std::int64_t count, Vector bias,
                      Element* y) {
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const float* source = from.data + (from_block * from.tiles + t) * kLanes;
    Vector lines[24];  // [output row][point column]
    for (int j = 0; j < 6; ++j) {
      Vector points[6];
      for (int i = 0; i < 6; ++i) points[i] = load8(source + (6 * i + j) * from.point);
      output_line(points, 1, lines + j, 6);
    }
    const std::int64_t rows = std::min<std::int64_t>(4, map.height - 4 * tile.row);
    const std::int64_t columns = std::min<std::int64_t>(4, map.width - 4 * tile.column);
    Element* to =
        y + map.at(tile.image, block) + (4 * tile.row * map.width + 4 * tile.column) * map.lanes;
    for (std::int64_t i = 0; i < rows; ++i) {
      Vector outputs[4];
      output_line(lines + 6 * i, 1, outputs, 1);
      for (std::int64_t j = 0; j < columns; ++j) {
        store8(to + (i * map.width + j) * map.lanes, outputs[j] + bias);
      }
    }
  }
}

/// A dy A' for tiles [first, first + count) of channel block `block`.
template <class Element>
void transform_gradient(const FeatureMap& map, const Element* dy, std::int64_t block,
                        std::int64_t first, std::int64_t count, const Points& to) {
  for (std::int64_t t = 0; t < count; ++t) {
    const Tile tile = tile_at(map, first + t);
    const std::int64_t rows = std::min<std::int64_t>(4, map.height - 4 * tile.row);
    const std::int64_t columns = std::min<std::int64_t>(4, map.width - 4 * tile.column);
    const Element* from =
        dy + map.at(tile.image, block) + (4 * tile.row * map.width + 4 * tile.column) * map.lanes;
    Vector lines[24] = {};  // [output row][point column]
    for (std::int64_t i = 0; i < rows; ++i) {
      Vector gradients[4] = {};
      for (std::int64_t j = 0; j < columns; ++j) {
        gradients[j] = load8(from + (i * map.width + j) * map.lanes);
      }
      gradient_line(gradients, 1, lines + 6 * i, 1);
    }
    float* target = to.data + (block * to.tiles + t) * kLanes;
    for (int j = 0; j < 6; ++j) {
      Vector points[6];
      gradient_line(lines + j, 6, points, 1);
      for (int i = 0; i < 6; ++i) store8(target + (6 * i + j) * to.point, points[i]);
    }
  }
}

/// Transformed weights: of point p, input channel c, output channel k at
/// p * weight_stride + (k / 16 * inputs + c) * 16 + k % 16. Points do not meet in one cache set.
constexpr std::int64_t weight_stride(std::int64_t inputs, std::int64_t outputs) {
  return inputs * outputs + kPanel;
}

/// The weight of (output k, input c) lies at data[k * k_stride + c * c_stride], its nine elements
/// in order or, for the input gradient, reversed. Packed ones (packed_convolution_cpu.h) lie in
/// order at data[k / 16 * 16 * k_stride + c * c_stride + k % 16], 16 floats apart.
template <class Element>
struct Weights {
  const Element* data;
  std::int64_t k_stride, c_stride;
  bool reversed, packed;
};

/// The windows from input channel `c` to 8 output channels from `k`.
template <class Element>
[[gnu::always_inline]] inline void load_windows(const Weights<Element>& w, std::int64_t k,
                                                std::int64_t c, Vector (&windows)[9]) {
  if (w.packed) {
    const Element* from = w.data + k / kPanel * kPanel * w.k_stride + c * w.c_stride + k % kPanel;
    for (int i = 0; i < 9; ++i) windows[i] = load8(from + i * kPanel);
    return;
  }
  const Element* from = w.data + k * w.k_stride + c * w.c_stride;
  Vector rows[8], last;
  for (int lane = 0; lane < kLanes; ++lane) {
    rows[lane] = load8(from + lane * w.k_stride);
    last[lane] = to_float(from[lane * w.k_stride + 8]);
  }
  transpose(rows);
  for (int i = 0; i < 8; ++i) windows[w.reversed ? 8 - i : i] = rows[i];
  windows[w.reversed ? 0 : 8] = last;
}

/// Transforms panel `panel` of 16 output channels to (input channel, 16), points `stride` apart,
/// for `inputs` channels from `begin`. A stride that is an integral constant saves a fifth.
template <class Element, class Stride>
void transform_weights(const Weights<Element>& w, std::int64_t begin, std::int64_t inputs,
                       std::int64_t panel, float* to, Stride stride) {
  for (std::int64_t c = 0; c < inputs; ++c) {
    for (std::int64_t half = 0; half < kPanel; half += kLanes) {
      Vector weights[9];
      load_windows(w, panel * kPanel + half, begin + c, weights);
      Vector lines[18];  // [row of the window][point]
      for (int i = 0; i < 3; ++i) weight_line(weights + 3 * i, 1, lines + 6 * i, 1);
      float* target = to + c * kPanel + half;
      for (int j = 0; j < 6; ++j) {
        Vector points[6];
        weight_line(lines + j, 6, points, 1);
        for (int i = 0; i < 6; ++i) store8(target + (6 * i + j) * stride, points[i]);
      }
    }
  }
}

}  // namespace pipetrain::winograd
