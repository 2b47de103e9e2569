#include "ops/conv/winograd_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/conv/channel_sums_cpu.h"
#include "ops/conv/winograd_transforms_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {
namespace {

using namespace winograd;

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
      const blocked::ChannelBlocks tensor{shape.outputs, shape.out_height * shape.out_width,
                                          shape.lanes};
      for (std::int64_t block = 2 * panel; block < 2 * panel + 2; ++block)
        sum_channels(tensor, shape.batch, dy, block, add, dbias);
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
