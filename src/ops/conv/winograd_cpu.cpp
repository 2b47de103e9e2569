#include "ops/conv/winograd_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/conv/channel_sums_cpu.h"
#include "ops/conv/winograd_vectors_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {
namespace {

using namespace winograd;

/// With AVX-512, feature maps lie in blocks of 16 channels.
bool is_wide(const WinogradShape& shape) { return shape.lanes == Wide::kLanes && has_avx512(); }

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
/// unless there are so many channels that the weights' traffic outweighs that. Threads have equally
/// many chunks.
std::int64_t chunk_tiles(const WinogradShape& shape, int threads) {
  const std::int64_t most = shape.inputs + shape.outputs <= 256 ? 24 : 48;
  const std::int64_t tiles = tile_count(shape);
  const std::int64_t chunks = (tiles + most * threads - 1) / (most * threads) * threads;
  return (tiles + chunks - 1) / chunks;
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

/// Panels that a thread takes at a time: as many as the products want, unless threads go without.
std::int64_t panels_together(const WinogradShape& shape, int threads) {
  const std::int64_t most = is_wide(shape) ? Wide::kMostPanels : Narrow::kMostPanels;
  return shape.outputs / kPanel >= most * threads ? most : 1;
}

/// Floats that a thread needs for its panels of weights and their products.
std::int64_t panel_floats(const WinogradShape& shape, std::int64_t panels) {
  return panels * kPoints * PanelStride::value +
         align_floats(points_floats(panels * kPanel, tile_count(shape)));
}

/// The whole of a forward with many tiles: all weights are transformed first, then threads take
/// chunks of tiles from input to output.
template <class Loops, class Element>
void convolve_chunks(const WinogradShape& shape, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(shape), to = output_map(shape);
  const std::int64_t tiles = tile_count(shape), chunk = chunk_tiles(shape, threads);
  const std::int64_t chunks = (tiles + chunk - 1) / chunk, panels = shape.outputs / kPanel;
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
      for (std::int64_t c = 0; c < shape.inputs; c += Loops::kLanes) {
        Loops::transform_input(from, x, c, first, count, v);
      }
      for (int point = 0; point < kPoints; ++point) {
        for (std::int64_t panel = 0; panel < panels; panel += Loops::kMostPanels) {
          Loops::multiply(PointProduct{
              v.at(point, 0), v.block(Loops::kLanes), shape.inputs,
              weights + point * stride + panel * shape.inputs * kPanel, shape.inputs * kPanel,
              std::min(Loops::kMostPanels, panels - panel), count, m.at(point, panel * kPanel),
              m.block(Loops::kLanes), /*first=*/true});
        }
      }
      for (std::int64_t k = 0; k < shape.outputs; k += Loops::kLanes) {
        Loops::transform_output(to, m, k, k, first, count, bias, y);
      }
    }
  }
}

/// The same with few tiles, where the transformed weights are the largest tensor of all: threads
/// take panels of 16 output channels, of which the weights are used while they are in the cache.
template <class Loops, class Element>
void convolve_panels(const WinogradShape& shape, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(shape), to = output_map(shape);
  const std::int64_t tiles = tile_count(shape), panels = shape.outputs / kPanel;
  constexpr PanelStride stride;
  constexpr std::int64_t u_panel = kPoints * stride;
  const std::int64_t most = panels_together(shape, threads);
  const Points v = points_at(reinterpret_cast<float*>(workspace), shape.inputs, tiles);
  float* rest = v.data + align_floats(points_floats(shape.inputs, tiles));
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t c = 0; c < shape.inputs; c += Loops::kLanes) {
      Loops::transform_input(from, x, c, 0, tiles, v);
    }
    float* u = rest + omp_get_thread_num() * panel_floats(shape, most);
    const Points m = points_at(u + most * u_panel, most * kPanel, tiles);
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; panel += most) {
      const std::int64_t together = std::min(most, panels - panel);
      for (std::int64_t begin = 0; begin < shape.inputs; begin += kInputsTogether) {
        const std::int64_t inputs = std::min(kInputsTogether, shape.inputs - begin);
        for (std::int64_t i = 0; i < together; ++i)
          transform_weights(w, begin, inputs, panel + i, u + i * u_panel, stride);
        // Packed weights that are transformed next come from memory in the meantime.
        const Element* next = w.data + panel * kPanel * w.k_stride + (begin + inputs) * w.c_stride;
        const std::int64_t each = inputs * 9 * kPanel / kPoints;
        for (int point = 0; point < kPoints; ++point) {
          for (std::int64_t i = 0; w.packed && i < together; ++i)
            blocked::prefetch(next + i * kPanel * w.k_stride + point * each, each);
          Loops::multiply(PointProduct{v.at(point, begin), v.block(Loops::kLanes), inputs,
                                       u + point * stride, u_panel, together, tiles, m.at(point, 0),
                                       m.block(Loops::kLanes),
                                       /*first=*/begin == 0});
        }
      }
      for (std::int64_t k = 0; k < together * kPanel; k += Loops::kLanes) {
        Loops::transform_output(to, m, k, panel * kPanel + k, 0, tiles, bias, y);
      }
    }
  }
}

template <class Element>
void convolve(const WinogradShape& shape, const Element* x, const Weights<Element>& w,
              const float* bias, Element* y, std::byte* workspace, int threads) {
  const bool few = has_few_tiles(shape);
  const auto run = is_wide(shape)
                       ? few ? convolve_panels<Wide, Element> : convolve_chunks<Wide, Element>
                   : few ? convolve_panels<Narrow, Element>
                         : convolve_chunks<Narrow, Element>;
  run(shape, x, w, bias, y, workspace, threads);
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
    for (std::int64_t half = 0; half < kPanel; half += 8) {
      const float* from = du + c * kPanel + half;
      Vector8 lines[18];  // [row of the window][point column]
      for (int j = 0; j < 6; ++j) {
        Vector8 points[6];
        for (int i = 0; i < 6; ++i) {
          points[i] = load8(from + (6 * i + j) * stride);
        }
        weight_gradient_line(points, 1, lines + j, 6);
      }
      float* to = dw + ((panel * kPanel + half) * shape.inputs + begin + c) * 9;
      Vector8 weights[9], rows[8];
      for (int i = 0; i < 3; ++i) weight_gradient_line(lines + 6 * i, 1, weights + 3 * i, 1);
      for (int i = 0; i < 8; ++i) rows[i] = weights[i];
      transpose(rows);
      for (int lane = 0; lane < 8; ++lane) {
        float* window = to + lane * shape.inputs * 9;
        store8(window, add ? load8(window) + rows[lane] : rows[lane]);
        window[8] = add ? window[8] + weights[8][lane] : weights[8][lane];
      }
    }
  }
}

/// What the threads of a weight gradient share: the points of one chunk of tiles.
struct GradientPoints {
  std::int64_t chunk;
  Points v, z;
  float* rest;  // of the workspace

  GradientPoints(const WinogradShape& shape, std::byte* workspace)
      : chunk(gradient_chunk_tiles(shape)),
        v(points_at(reinterpret_cast<float*>(workspace), shape.inputs, chunk)),
        z(points_at(v.data + align_floats(points_floats(shape.inputs, chunk)), shape.outputs,
                    chunk)),
        rest(z.data + align_floats(points_floats(shape.outputs, chunk))) {}
};

/// The points of tiles [first, first + count), by all threads of a parallel region.
template <class Loops, class Element>
void transform_chunk(const WinogradShape& shape, const Element* x, const Element* dy,
                     std::int64_t first, std::int64_t count, const GradientPoints& points) {
  const FeatureMap from = input_map(shape), to = output_map(shape);
#pragma omp for schedule(static) nowait
  for (std::int64_t c = 0; c < shape.inputs; c += Loops::kLanes)
    Loops::transform_input(from, x, c, first, count, points.v);
#pragma omp for schedule(static)
  for (std::int64_t k = 0; k < shape.outputs; k += Loops::kLanes)
    Loops::transform_gradient(to, dy, k, first, count, points.z);
}

template <class Element>
void sum_panel(const WinogradShape& shape, const Element* dy, std::int64_t panel, bool add,
               float* dbias) {
  const blocked::ChannelBlocks tensor{shape.outputs, shape.out_height * shape.out_width,
                                      shape.lanes};
  for (std::int64_t block = 2 * panel; block < 2 * panel + 2; ++block)
    sum_channels(tensor, shape.batch, dy, block, add, dbias);
}

/// A weight gradient whose sums over all tiles are made chunk by chunk.
template <class Loops, class Element>
void sum_chunks(const WinogradShape& shape, const Element* x, const Element* dy, bool add,
                float* dw, float* dbias, std::byte* workspace, int threads) {
  const GradientPoints points(shape, workspace);
  const Points &v = points.v, &z = points.z;
  const std::int64_t tiles = tile_count(shape), panels = shape.outputs / kPanel;
  constexpr std::int64_t kLanes = Loops::kLanes, kMost = Loops::kMostPanels;
  const std::int64_t groups = (panels + kMost - 1) / kMost;
  const std::int64_t stride = weight_stride(shape.inputs, shape.outputs);
#pragma omp parallel num_threads(threads)
  {
    for (std::int64_t first = 0; first < tiles; first += points.chunk) {
      const std::int64_t count = std::min(points.chunk, tiles - first);
      transform_chunk<Loops>(shape, x, dy, first, count, points);
#pragma omp for schedule(static)
      for (std::int64_t pair = 0; pair < kPoints * groups; ++pair) {
        const std::int64_t point = pair / groups, panel = pair % groups * kMost;
        Loops::multiply(GradientProduct{
            v.at(point, 0), v.block(kLanes), shape.inputs, z.at(point, panel * kPanel),
            z.block(kLanes), count, std::min(kMost, panels - panel),
            points.rest + point * stride + panel * shape.inputs * kPanel, shape.inputs * kPanel,
            /*first=*/first == 0});
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      transform_weight_gradient(shape, points.rest + panel * shape.inputs * kPanel, stride, panel,
                                0, shape.inputs, add, dw);
      if (dbias) sum_panel(shape, dy, panel, add, dbias);
    }
  }
}

/// The same where all tiles make one chunk: the sums of a few channels are complete at once.
template <class Loops, class Element>
void sum_panels(const WinogradShape& shape, const Element* x, const Element* dy, bool add,
                float* dw, float* dbias, std::byte* workspace, int threads) {
  const GradientPoints points(shape, workspace);
  const Points &v = points.v, &z = points.z;
  const std::int64_t tiles = points.chunk, panels = shape.outputs / kPanel;
  constexpr std::int64_t kLanes = Loops::kLanes;
  constexpr std::int64_t stride = weight_stride(kGradientInputs, kPanel);
  constexpr std::int64_t u_panel = kPoints * stride;
  const std::int64_t most = panels_together(shape, threads);
#pragma omp parallel num_threads(threads)
  {
    transform_chunk<Loops>(shape, x, dy, 0, tiles, points);
    float* u = points.rest + omp_get_thread_num() * most * u_panel;
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; panel += most) {
      const std::int64_t together = std::min(most, panels - panel);
      for (std::int64_t begin = 0; begin < shape.inputs; begin += kGradientInputs) {
        const std::int64_t inputs = std::min(kGradientInputs, shape.inputs - begin);
        for (int point = 0; point < kPoints; ++point) {
          // One row of each panel during each of the first products.
          for (std::int64_t i = 0; i < together && point < kPanel; ++i) {
            const std::int64_t row = (panel + i) * kPanel + point;
            blocked::prefetch(dw + (row * shape.inputs + begin) * 9, inputs * 9);
          }
          Loops::multiply(GradientProduct{v.at(point, begin), v.block(kLanes), inputs,
                                          z.at(point, panel * kPanel), z.block(kLanes), tiles,
                                          together, u + point * stride, u_panel, /*first=*/true});
        }
        for (std::int64_t i = 0; i < together; ++i) {
          transform_weight_gradient(shape, u + i * u_panel, stride, panel + i, begin, inputs, add,
                                    dw);
        }
      }
      for (std::int64_t i = 0; dbias && i < together; ++i)
        sum_panel(shape, dy, panel + i, add, dbias);
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
    const std::int64_t tiles = tile_count(each), chunk = chunk_tiles(each, threads);
    most = std::max(most, has_few_tiles(each)
                              ? align_floats(points_floats(each.inputs, tiles)) +
                                    threads * panel_floats(each, panels_together(each, threads))
                              : kPoints * weight_stride(each.inputs, each.outputs) +
                                    threads * (align_floats(points_floats(each.inputs, chunk)) +
                                               align_floats(points_floats(each.outputs, chunk))));
  }
  return static_cast<std::size_t>(most) * sizeof(float);
}

std::size_t winograd_weight_gradient_workspace_bytes(const WinogradShape& shape, int threads) {
  const std::int64_t chunk = gradient_chunk_tiles(shape);
  const std::int64_t sums = has_one_gradient_chunk(shape)
                                ? threads * panels_together(shape, threads) * kPoints *
                                      weight_stride(kGradientInputs, kPanel)
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
  const bool few = has_one_gradient_chunk(shape);
  const auto run = is_wide(shape) ? few ? sum_panels<Wide, Element> : sum_chunks<Wide, Element>
                   : few ? sum_panels<Narrow, Element>
                                  : sum_chunks<Narrow, Element>;
  run(shape, x, dy, add, dw, dbias, workspace, threads);
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
