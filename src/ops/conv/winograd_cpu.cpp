#include "ops/conv/winograd_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {
namespace {

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
Tile tile_at(const FeatureMap& map, std::int64_t index) {
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
std::int64_t point_stride(std::int64_t channels, std::int64_t tiles) {
  return channels * tiles + 16;
}
std::int64_t points_floats(std::int64_t channels, std::int64_t tiles) {
  return kPoints * point_stride(channels, tiles);
}
Points points_at(float* data, std::int64_t channels, std::int64_t tiles) {
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

/// Products of one point, m (tile, 16 outputs) = v (tile, inputs) u (inputs, 16): blocks `to_block`
/// and the next of m = v u for `count` tiles.
void multiply_panel(const Points& v, int point, const float* u, std::int64_t blocks,
                    std::int64_t count, bool first, const Points& m, std::int64_t to_block) {
  blocked::multiply(count, v.data + point * v.point, v.tiles * kLanes, u, kPanel, blocks, first,
                    m.data + point * m.point + to_block * m.tiles * kLanes, m.tiles * kLanes);
}

std::int64_t tiles_of(std::int64_t positions) { return (positions + 3) / 4; }
std::int64_t tile_count(const WinogradShape& shape) {
  return shape.batch * tiles_of(shape.out_height) * tiles_of(shape.out_width);
}

FeatureMap input_map(const WinogradShape& shape) {
  return {shape.inputs,
          shape.height,
          shape.width,
          tiles_of(shape.out_height),
          tiles_of(shape.out_width),
          shape.pad_top,
          shape.pad_left,
          shape.lanes};
}
FeatureMap output_map(const WinogradShape& shape) {
  return {shape.outputs,
          shape.out_height,
          shape.out_width,
          tiles_of(shape.out_height),
          tiles_of(shape.out_width),
          0,
          0,
          shape.lanes};
}

/// The forward whose result is the input gradient: dy padded by what the window reaches beyond.
WinogradShape transposed(const WinogradShape& shape) {
  return {shape.batch,  shape.outputs, shape.inputs,      shape.out_height,   shape.out_width,
          shape.height, shape.width,   2 - shape.pad_top, 2 - shape.pad_left, shape.lanes};
}

/// Tiles that one thread takes from input to output: their points stay in the second-level cache,
/// unless there are so many channels that the weights' traffic outweighs that.
std::int64_t chunk_tiles(const WinogradShape& shape) {
  const std::int64_t wanted = shape.inputs + shape.outputs <= 256 ? 24 : 48;
  const std::int64_t tiles = tile_count(shape), chunks = (tiles + wanted - 1) / wanted;
  const std::int64_t rows = has_avx512() ? kMostWideRows : kMostRows;
  return ((tiles + chunks - 1) / chunks + rows - 1) / rows * rows;
}
std::int64_t gradient_chunk_tiles(const WinogradShape& shape) {
  return std::min<std::int64_t>(96, tile_count(shape));
}

std::int64_t align_floats(std::int64_t count) { return (count + 15) / 16 * 16; }

/// So few that going over all tiles once per panel costs less than writing all weights.
bool has_few_tiles(const WinogradShape& shape) { return tile_count(shape) <= 64; }
bool has_one_gradient_chunk(const WinogradShape& shape) {
  return gradient_chunk_tiles(shape) == tile_count(shape);
}

/// Input channels whose weights for one panel are transformed together: they stay in the
/// second-level cache until they have been used.
constexpr std::int64_t kInputsTogether = 64;
using PanelStride = std::integral_constant<std::int64_t, weight_stride(kInputsTogether, kPanel)>;

/// Floats that a thread needs for one panel of weights and its products.
std::int64_t panel_floats(std::int64_t tiles) {
  return kPoints * PanelStride::value + align_floats(points_floats(kPanel, tiles));
}

/// The whole of a forward with many tiles: all weights are transformed first, then threads take
/// chunks of tiles from input to output.
template <class Element>
void convolve_chunks(const WinogradShape& shape, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(shape), to = output_map(shape);
  const std::int64_t tiles = tile_count(shape), chunk = chunk_tiles(shape);
  const std::int64_t chunks = (tiles + chunk - 1) / chunk;
  const std::int64_t blocks = shape.inputs / kLanes, panels = shape.outputs / kPanel;
  const std::int64_t inputs_floats = align_floats(points_floats(shape.inputs, chunk));
  const std::int64_t outputs_floats = align_floats(points_floats(shape.outputs, chunk));
  auto* weights = reinterpret_cast<float*>(workspace);
  const std::int64_t stride = weight_stride(shape.inputs, shape.outputs);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      transform_weights(w, 0, shape.inputs, panel, weights + panel * shape.inputs * kPanel, stride);
    }
    float* own =
        weights + kPoints * stride + omp_get_thread_num() * (inputs_floats + outputs_floats);
    const Points v = points_at(own, shape.inputs, chunk);
    const Points m = points_at(own + inputs_floats, shape.outputs, chunk);
#pragma omp for schedule(static)
    for (std::int64_t piece = 0; piece < chunks; ++piece) {
      const std::int64_t first = piece * chunk, count = std::min(chunk, tiles - first);
      for (std::int64_t block = 0; block < blocks; ++block) {
        transform_input(from, x, block, first, count, v);
      }
      for (int point = 0; point < kPoints; ++point) {
        for (std::int64_t panel = 0; panel < panels; ++panel) {
          const float* u = weights + point * stride + panel * shape.inputs * kPanel;
          multiply_panel(v, point, u, blocks, count, /*first=*/true, m, 2 * panel);
        }
      }
      for (std::int64_t block = 0; block < 2 * panels; ++block) {
        const Vector shift = bias ? load8(bias + block * kLanes) : Vector{};
        transform_output(to, m, block, block, first, count, shift, y);
      }
    }
  }
}

/// The same with few tiles, where the transformed weights are the largest tensor of all: threads
/// take panels of 16 output channels, of which the weights are used while they are in the cache.
template <class Element>
void convolve_panels(const WinogradShape& shape, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(shape), to = output_map(shape);
  const std::int64_t tiles = tile_count(shape);
  const std::int64_t blocks = shape.inputs / kLanes, panels = shape.outputs / kPanel;
  constexpr PanelStride stride;
  const Points v = points_at(reinterpret_cast<float*>(workspace), shape.inputs, tiles);
  float* rest = v.data + align_floats(points_floats(shape.inputs, tiles));
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t block = 0; block < blocks; ++block) {
      transform_input(from, x, block, 0, tiles, v);
    }
    float* u = rest + omp_get_thread_num() * panel_floats(tiles);
    const Points m = points_at(u + kPoints * stride, kPanel, tiles);
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      for (std::int64_t begin = 0; begin < shape.inputs; begin += kInputsTogether) {
        const std::int64_t inputs = std::min(kInputsTogether, shape.inputs - begin);
        transform_weights(w, begin, inputs, panel, u, stride);
        const Points part{v.data + begin * v.tiles, v.tiles, v.point};
        // Packed weights that are transformed next come from memory in the meantime.
        const Element* next = w.data + panel * kPanel * w.k_stride + (begin + inputs) * w.c_stride;
        const std::int64_t each = inputs * 9 * kPanel / kPoints;
        for (int point = 0; point < kPoints; ++point) {
          if (w.packed) blocked::prefetch(next + point * each, each);
          multiply_panel(part, point, u + point * stride, inputs / kLanes, tiles,
                         /*first=*/begin == 0, m, 0);
        }
      }
      for (std::int64_t half = 0; half < 2; ++half) {
        const std::int64_t block = 2 * panel + half;
        const Vector shift = bias ? load8(bias + block * kLanes) : Vector{};
        transform_output(to, m, half, block, 0, tiles, shift, y);
      }
    }
  }
}

template <class Element>
void convolve(const WinogradShape& shape, const Element* x, const Weights<Element>& w,
              const float* bias, Element* y, std::byte* workspace, int threads) {
  if (has_few_tiles(shape)) return convolve_panels(shape, x, w, bias, y, workspace, threads);
  convolve_chunks(shape, x, w, bias, y, workspace, threads);
}

/// Input channels whose gradients for one panel are summed before they are transformed, where all
/// tiles make one chunk: the sums stay in the second-level cache.
constexpr std::int64_t kGradientInputs = 48;

/// Sums of dy over all positions of each channel.
template <class Element>
void sum_channels(const WinogradShape& shape, const Element* dy, std::int64_t block, bool add,
                  float* sums) {
  const std::int64_t positions = shape.out_height * shape.out_width;
  double totals[kLanes] = {};
  for (std::int64_t n = 0; n < shape.batch; ++n) {
    const Element* from =
        dy + blocked::ChannelBlocks{shape.outputs, positions, shape.lanes}.at(n, block);
    for (std::int64_t begin = 0; begin < positions; begin += 256) {
      Vector sum = {};
      for (std::int64_t i = begin; i < std::min(begin + 256, positions); ++i) {
        sum += load8(from + i * shape.lanes);
      }
      for (int lane = 0; lane < kLanes; ++lane) totals[lane] += static_cast<double>(sum[lane]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float& sum = sums[block * kLanes + lane];
    sum = static_cast<float>(totals[lane]) + (add ? sum : 0.0F);
  }
}

/// dw = G' du G for one panel of 16 output channels and `inputs` channels from `begin`; du: (input
/// channel, 16), points `stride` apart. Written, or added to what is there.
void transform_weight_gradient(const WinogradShape& shape, const float* du, std::int64_t stride,
                               std::int64_t panel, std::int64_t begin, std::int64_t inputs,
                               bool add, float* dw) {
  for (std::int64_t c = 0; c < inputs; ++c) {
    for (std::int64_t half = 0; half < kPanel; half += kLanes) {
      const float* from = du + c * kPanel + half;
      Vector lines[18];  // [row of the window][point column]
      for (int j = 0; j < 6; ++j) {
        Vector points[6];
        for (int i = 0; i < 6; ++i) {
          points[i] = load8(from + (6 * i + j) * stride);
        }
        weight_gradient_line(points, 1, lines + j, 6);
      }
      float* to = dw + ((panel * kPanel + half) * shape.inputs + begin + c) * 9;
      Vector weights[9], rows[8];
      for (int i = 0; i < 3; ++i) weight_gradient_line(lines + 6 * i, 1, weights + 3 * i, 1);
      for (int i = 0; i < 8; ++i) rows[i] = weights[i];
      transpose(rows);
      for (int lane = 0; lane < kLanes; ++lane) {
        float* window = to + lane * shape.inputs * 9;
        store8(window, add ? load8(window) + rows[lane] : rows[lane]);
        window[8] = add ? window[8] + weights[8][lane] : weights[8][lane];
      }
    }
  }
}

}  // namespace

bool winograd_pays(const WinogradShape& shape) {
  const std::int64_t transformed = kPoints * tiles_of(shape.out_height) * tiles_of(shape.out_width);
  return 3 * transformed <= 2 * 9 * shape.out_height * shape.out_width;
}

bool winograd_has_few_tiles(const WinogradShape& shape) { return has_few_tiles(shape); }

std::size_t winograd_workspace_bytes(const WinogradShape& shape, int threads) {
  std::int64_t most = 0;
  for (const WinogradShape& each : {shape, transposed(shape)}) {
    const std::int64_t tiles = tile_count(each), chunk = chunk_tiles(each);
    most = std::max(
        most, has_few_tiles(each)
                  ? align_floats(points_floats(each.inputs, tiles)) + threads * panel_floats(tiles)
                  : kPoints * weight_stride(each.inputs, each.outputs) +
                        threads * (align_floats(points_floats(each.inputs, chunk)) +
                                   align_floats(points_floats(each.outputs, chunk))));
  }
  return static_cast<std::size_t>(most) * sizeof(float);
}

std::size_t winograd_weight_gradient_workspace_bytes(const WinogradShape& shape, int threads) {
  const std::int64_t chunk = gradient_chunk_tiles(shape);
  const std::int64_t sums = has_one_gradient_chunk(shape)
                                ? threads * kPoints * weight_stride(kGradientInputs, kPanel)
                                : kPoints * weight_stride(shape.inputs, shape.outputs);
  return static_cast<std::size_t>(sums + align_floats(points_floats(shape.inputs, chunk)) +
                                  align_floats(points_floats(shape.outputs, chunk))) *
         sizeof(float);
}

template <class Element>
void winograd_forward(const WinogradShape& shape, const Element* x,
                      const ConvolutionWeights<Element>& w, const float* bias, Element* y,
                      std::byte* workspace, int threads) {
  const std::int64_t row = shape.inputs * 9;
  const Weights<Element> weights{w.data, row, w.packed ? 9 * kPanel : 9, /*reversed=*/false,
                                 w.packed};
  convolve(shape, x, weights, bias, y, workspace, threads);
}

template <class Element>
void winograd_input_gradient(const WinogradShape& shape, const Element* dy,
                             const ConvolutionWeights<Element>& w, Element* dx,
                             std::byte* workspace, int threads) {
  const std::int64_t row = shape.inputs * 9;
  const Weights<Element> weights =
      w.packed ? Weights<Element>{w.data, shape.outputs * 9, 9 * kPanel, false, true}
               : Weights<Element>{w.data, 9, row, /*reversed=*/true, false};
  convolve(transposed(shape), dy, weights, nullptr, dx, workspace, threads);
}

template <class Element>
void winograd_weight_gradient(const WinogradShape& shape, const Element* x, const Element* dy,
                              bool add, float* dw, float* dbias, std::byte* workspace,
                              int threads) {
  const FeatureMap from = input_map(shape), to = output_map(shape);
  const std::int64_t tiles = tile_count(shape), chunk = gradient_chunk_tiles(shape);
  const std::int64_t blocks = shape.inputs / kLanes, panels = shape.outputs / kPanel;
  const bool few = has_one_gradient_chunk(shape);  // a panel's sums are complete at once
  const Points v = points_at(reinterpret_cast<float*>(workspace), shape.inputs, chunk);
  const Points z =
      points_at(v.data + align_floats(points_floats(shape.inputs, chunk)), shape.outputs, chunk);
  float* sums = z.data + align_floats(points_floats(shape.outputs, chunk));
  const std::int64_t stride =
      few ? weight_stride(kGradientInputs, kPanel) : weight_stride(shape.inputs, shape.outputs);
  const auto add_point = [&](std::int64_t point, std::int64_t panel, std::int64_t begin,
                             std::int64_t end, std::int64_t count, bool first, float* du) {
    const blocked::OperandPair pair{point * v.point, point * z.point + panel * 2 * chunk * kLanes};
    for (std::int64_t c = begin; c < end; c += blocked::channels_together()) {
      blocked::multiply_transposed(end - c, v.data, chunk * kLanes, c, z.data, chunk * kLanes,
                                   count, {&pair, 1}, first, du + (c - begin) * kPanel, kPanel);
    }
  };
#pragma omp parallel num_threads(threads)
  {
    for (std::int64_t first = 0; first < tiles; first += chunk) {
      const std::int64_t count = std::min(chunk, tiles - first);
#pragma omp for schedule(static)
      for (std::int64_t block = 0; block < blocks + 2 * panels; ++block) {
        if (block < blocks) {
          transform_input(from, x, block, first, count, v);
        } else {
          transform_gradient(to, dy, block - blocks, first, count, z);
        }
      }
      if (few) break;
#pragma omp for schedule(static)
      for (std::int64_t pair = 0; pair < kPoints * panels; ++pair) {
        const std::int64_t point = pair / panels, panel = pair % panels;
        add_point(point, panel, 0, shape.inputs, count, first == 0,
                  sums + point * stride + panel * shape.inputs * kPanel);
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      if (few) {
        float* own = sums + omp_get_thread_num() * kPoints * stride;
        for (std::int64_t begin = 0; begin < shape.inputs; begin += kGradientInputs) {
          const std::int64_t inputs = std::min(kGradientInputs, shape.inputs - begin);
          for (int point = 0; point < kPoints; ++point) {
            if (point < kPanel) {  // one row of the panel during each of the first products
              blocked::prefetch(dw + ((panel * kPanel + point) * shape.inputs + begin) * 9,
                                inputs * 9);
            }
            add_point(point, panel, begin, begin + inputs, tiles, /*first=*/true,
                      own + point * stride);
          }
          transform_weight_gradient(shape, own, stride, panel, begin, inputs, add, dw);
        }
      } else {
        transform_weight_gradient(shape, sums + panel * shape.inputs * kPanel, stride, panel, 0,
                                  shape.inputs, add, dw);
      }
      if (!dbias) continue;
      sum_channels(shape, dy, 2 * panel, add, dbias);
      sum_channels(shape, dy, 2 * panel + 1, add, dbias);
    }
  }
}

#define PIPETRAIN_WINOGRAD_OF(Element)                                                            \
  template void winograd_forward(const WinogradShape&, const Element*,                            \
                                 const ConvolutionWeights<Element>&, const float*, Element*,      \
                                 std::byte*, int);                                                \
  template void winograd_input_gradient(const WinogradShape&, const Element*,                     \
                                        const ConvolutionWeights<Element>&, Element*, std::byte*, \
                                        int);                                                     \
  template void winograd_weight_gradient(const WinogradShape&, const Element*, const Element*,    \
                                         bool, float*, float*, std::byte*, int)
PIPETRAIN_WINOGRAD_OF(float);
PIPETRAIN_WINOGRAD_OF(BFloat16);
#undef PIPETRAIN_WINOGRAD_OF

}  // namespace pipetrain
