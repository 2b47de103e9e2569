#include "ops/conv/winograd_cpu.h"

#include <omp.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "ops/conv/channel_sums_cpu.h"
#include "ops/conv/winograd_shape.h"
#include "ops/conv/winograd_vectors_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {
namespace {

using namespace winograd;

/// With AVX-512, feature maps lie in blocks of 16 channels.
bool is_wide(std::int64_t lanes) { return lanes == Wide::kLanes && has_avx512(); }

// What the rule of shapes knows of the schemes.
static_assert(Wide::Unstrided::kOut == kOut && Wide::Strided::kOut == kOut &&
              Wide::StridedInputGradient::kOut == 2 * kOut);
static_assert(kSlotsByPoint<Wide::Unstrided::kLine>.size() == 36 &&
              kSlotsByPoint<Wide::Strided::kLine>.size() == 81);

FeatureMap input_map(const Pass& pass) {
  return {pass.inputs,  pass.height,   pass.width, pass.tile_rows(), pass.tile_columns(),
          pass.pad_top, pass.pad_left, pass.lanes, pass.dilation};
}
FeatureMap output_map(const Pass& pass) {
  return {
      pass.outputs, pass.out_height, pass.out_width, pass.tile_rows(), pass.tile_columns(), 0, 0,
      pass.lanes,   pass.dilation};
}

/// Floats of so many channels of transformed tiles.
std::int64_t points_floats(std::int64_t slots, std::int64_t channels, std::int64_t tiles) {
  return slots * slot_stride(channels, tiles);
}

/// Tiles that one thread takes from input to output: their points stay in the second-level cache,
/// unless there are so many channels that the weights' traffic outweighs that. Threads have equally
/// many chunks, unless those had too few tiles for the products.
std::int64_t chunk_tiles(const Pass& pass, int threads) {
  constexpr std::int64_t kLeast = 6;
  const std::int64_t most = pass.slots > kPoints ? 12 : pass.inputs + pass.outputs <= 256 ? 24 : 48;
  const std::int64_t tiles = pass.tiles();
  const std::int64_t chunks = (tiles + most * threads - 1) / (most * threads) * threads;
  return std::max((tiles + chunks - 1) / std::max<std::int64_t>(1, chunks),
                  std::min(kLeast, tiles));
}
std::int64_t gradient_chunk_tiles(const WinogradShape& shape) {
  return std::min(96 * kPoints / slots_of(shape), forward(shape).tiles());
}

bool has_one_gradient_chunk(const WinogradShape& shape) {
  return gradient_chunk_tiles(shape) == forward(shape).tiles();
}

/// Input channels whose weights for one panel are transformed together: they stay in the
/// second-level cache until they have been used.
constexpr std::int64_t kInputsTogether = 64;
using PanelStride = std::integral_constant<std::int64_t, weight_stride(kInputsTogether, kPanel)>;

/// The panels of a thread of a parallel region.
struct PanelRange {
  std::int64_t begin, end;

  explicit PanelRange(std::int64_t panels)
      : begin(panels * omp_get_thread_num() / omp_get_num_threads()),
        end(panels * (omp_get_thread_num() + 1) / omp_get_num_threads()) {}
};

/// Panels that a thread takes at a time, at most.
std::int64_t most_panels(std::int64_t lanes) {
  return is_wide(lanes) ? Wide::kMostPanels : Narrow::kMostPanels;
}

/// Floats that a thread needs for its panels of weights and their products.
std::int64_t panel_floats(const Pass& pass) {
  const std::int64_t panels = most_panels(pass.lanes);
  return panels * kPoints * PanelStride::value +
         points_floats(pass.slots, panels * kPanel, pass.tiles());
}

/// The whole of a pass with many tiles: all weights are transformed first, then threads take chunks
/// of tiles from input to output.
template <class Loops, class Scheme, class Element>
void convolve_chunks(const Pass& pass, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(pass), to = output_map(pass);
  const std::int64_t tiles = pass.tiles(), chunk = chunk_tiles(pass, threads);
  const std::int64_t chunks = (tiles + chunk - 1) / chunk, panels = pass.outputs / kPanel;
  const std::int64_t inputs_floats = points_floats(pass.slots, pass.inputs, chunk);
  const std::int64_t outputs_floats = points_floats(pass.slots, pass.outputs, chunk);
  auto* weights = reinterpret_cast<float*>(workspace);
  const std::int64_t stride = weight_stride(pass.inputs, pass.outputs);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      transform_weights<Scheme::kStrided>(w, 0, pass.inputs, panel,
                                          weights + panel * pass.inputs * kPanel, stride);
    }
    float* own =
        weights + kPoints * stride + omp_get_thread_num() * (inputs_floats + outputs_floats);
    const Points v = points_at(own, pass.inputs, chunk);
    const Points m = points_at(own + inputs_floats, pass.outputs, chunk);
#pragma omp for schedule(static)
    for (std::int64_t piece = 0; piece < chunks; ++piece) {
      const std::int64_t first = piece * chunk, count = std::min(chunk, tiles - first);
      for (std::int64_t c = 0; c < pass.inputs; c += Loops::kLanes) {
        Loops::template transform_input<Scheme>(from, x, c, first, count, v);
      }
      for (int point = 0; point < kPoints; ++point) {
        for (std::int64_t panel = 0; panel < panels; panel += Loops::kMostPanels) {
          for (const Slot& slot : slots_of_point<Scheme::kLine>(point)) {
            Loops::multiply(PointProduct{
                v.at(slot.index, 0), v.block(Loops::kLanes), pass.inputs,
                weights + point * stride + panel * pass.inputs * kPanel, pass.inputs * kPanel,
                std::min(Loops::kMostPanels, panels - panel), count,
                m.at(slot.index, panel * kPanel), m.block(Loops::kLanes), /*overwrite=*/true});
          }
        }
      }
      for (std::int64_t k = 0; k < pass.outputs; k += Loops::kLanes) {
        Loops::template transform_output<Scheme>(to, m, k, k, first, count, bias, y);
      }
    }
  }
}

/// The same with few tiles, where the transformed weights are the largest tensor of all: threads
/// take panels of 16 output channels, of which the weights are used while they are in the cache.
template <class Loops, class Scheme, class Element>
void convolve_panels(const Pass& pass, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(pass), to = output_map(pass);
  const std::int64_t tiles = pass.tiles(), panels = pass.outputs / kPanel;
  constexpr PanelStride stride;
  constexpr std::int64_t u_panel = kPoints * stride;
  constexpr std::int64_t kMost = Loops::kMostPanels;
  const Points v = points_at(reinterpret_cast<float*>(workspace), pass.inputs, tiles);
  float* rest = v.data + points_floats(pass.slots, pass.inputs, tiles);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t c = 0; c < pass.inputs; c += Loops::kLanes) {
      Loops::template transform_input<Scheme>(from, x, c, 0, tiles, v);
    }
    float* u = rest + omp_get_thread_num() * panel_floats(pass);
    const Points m = points_at(u + kMost * u_panel, kMost * kPanel, tiles);
    const PanelRange mine(panels);
    for (std::int64_t panel = mine.begin; panel < mine.end; panel += kMost) {
      const std::int64_t together = std::min(kMost, mine.end - panel);
      for (std::int64_t begin = 0; begin < pass.inputs; begin += kInputsTogether) {
        const std::int64_t inputs = std::min(kInputsTogether, pass.inputs - begin);
        for (std::int64_t i = 0; i < together; ++i) {
          transform_weights<Scheme::kStrided>(w, begin, inputs, panel + i, u + i * u_panel, stride);
        }
        // Packed weights that are transformed next come from memory in the meantime.
        const bool is_last = begin + inputs == pass.inputs;
        const std::int64_t next_panel = is_last ? panel + kMost : panel;
        const std::int64_t next_begin = is_last ? 0 : begin + inputs;
        const Element* next = w.data + next_panel * kPanel * w.k_stride + next_begin * w.c_stride;
        const std::int64_t each =
            std::min(kInputsTogether, pass.inputs - next_begin) * 9 * kPanel / kPoints;
        for (const Slot& slot : kSlotsByPoint<Scheme::kLine>) {
          if (w.packed && slot.first_of_point) {
            for (std::int64_t i = 0; i < together; ++i)
              blocked::prefetch(next + i * kPanel * w.k_stride + slot.point * each, each);
          }
          Loops::multiply(PointProduct{v.at(slot.index, begin), v.block(Loops::kLanes), inputs,
                                       u + slot.point * stride, u_panel, together, tiles,
                                       m.at(slot.index, 0), m.block(Loops::kLanes),
                                       /*overwrite=*/begin == 0});
        }
      }
      for (std::int64_t k = 0; k < together * kPanel; k += Loops::kLanes) {
        Loops::template transform_output<Scheme>(to, m, k, panel * kPanel + k, 0, tiles, bias, y);
      }
    }
  }
}

template <class Loops, class Scheme, class Element>
void convolve(const Pass& pass, const Element* x, const Weights<Element>& w, const float* bias,
              Element* y, std::byte* workspace, int threads) {
  const auto run = has_few_tiles(pass) ? convolve_panels<Loops, Scheme, Element>
                                       : convolve_chunks<Loops, Scheme, Element>;
  run(pass, x, w, bias, y, workspace, threads);
}

/// Input channels whose gradients for one panel are summed before they are transformed, where all
/// tiles make one chunk: the sums stay in the second-level cache.
constexpr std::int64_t kGradientInputs = 48;

/// dw = G' du G for one panel of 16 output channels and `inputs` channels from `begin`; du: (input
/// channel, 16), points `stride` apart. Written, or added to what is there.
template <bool kStrided>
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
        weight_gradient_line<kStrided>(points, 1, lines + j, 6);
      }
      float* to = dw + ((panel * kPanel + half) * shape.inputs + begin + c) * 9;
      Vector8 weights[9], rows[8];
      for (int i = 0; i < 3; ++i)
        weight_gradient_line<kStrided>(lines + 6 * i, 1, weights + 3 * i, 1);
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
        z(points_at(v.data + points_floats(slots_of(shape), shape.inputs, chunk), shape.outputs,
                    chunk)),
        rest(z.data + points_floats(slots_of(shape), shape.outputs, chunk)) {}
};

/// The points of tiles [first, first + count), by all threads of a parallel region.
template <class Loops, class Scheme, class Element>
void transform_chunk(const WinogradShape& shape, const Element* x, const Element* dy,
                     std::int64_t first, std::int64_t count, const GradientPoints& points) {
  const FeatureMap from = input_map(forward(shape)), to = output_map(forward(shape));
  constexpr std::int64_t kLanes = Loops::kLanes;
#pragma omp for schedule(static, 1)
  for (std::int64_t channel = 0; channel < shape.inputs + shape.outputs; channel += kLanes) {
    if (channel < shape.inputs) {
      Loops::template transform_input<Scheme>(from, x, channel, first, count, points.v);
    } else {
      Loops::template transform_gradient<Scheme>(to, dy, channel - shape.inputs, first, count,
                                                 points.z);
    }
  }
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
template <class Loops, class Scheme, class Element>
void sum_chunks(const WinogradShape& shape, const Element* x, const Element* dy, bool add,
                float* dw, float* dbias, std::byte* workspace, int threads) {
  const GradientPoints points(shape, workspace);
  const Points &v = points.v, &z = points.z;
  const std::int64_t tiles = forward(shape).tiles(), panels = shape.outputs / kPanel;
  constexpr std::int64_t kLanes = Loops::kLanes, kMost = Loops::kMostPanels;
  const std::int64_t groups = (panels + kMost - 1) / kMost;
  const std::int64_t stride = weight_stride(shape.inputs, shape.outputs);
#pragma omp parallel num_threads(threads)
  {
    for (std::int64_t first = 0; first < tiles; first += points.chunk) {
      const std::int64_t count = std::min(points.chunk, tiles - first);
      transform_chunk<Loops, Scheme>(shape, x, dy, first, count, points);
      // Points have different numbers of slots, the last ones most: threads take the next pair when
      // they are free.
#pragma omp for schedule(dynamic)
      for (std::int64_t pair = 0; pair < kPoints * groups; ++pair) {
        const std::int64_t point = kPoints - 1 - pair / groups, panel = pair % groups * kMost;
        for (const Slot& slot : slots_of_point<Scheme::kLine>(point)) {
          Loops::multiply(GradientProduct{
              v.at(slot.index, 0), v.block(kLanes), shape.inputs, z.at(slot.index, panel * kPanel),
              z.block(kLanes), count, std::min(kMost, panels - panel),
              points.rest + point * stride + panel * shape.inputs * kPanel, shape.inputs * kPanel,
              /*overwrite=*/slot.first_of_point && first == 0});
        }
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      transform_weight_gradient<Scheme::kStrided>(shape,
                                                  points.rest + panel * shape.inputs * kPanel,
                                                  stride, panel, 0, shape.inputs, add, dw);
      if (dbias) sum_panel(shape, dy, panel, add, dbias);
    }
  }
}

/// The same where all tiles make one chunk: the sums of a few channels are complete at once.
template <class Loops, class Scheme, class Element>
void sum_panels(const WinogradShape& shape, const Element* x, const Element* dy, bool add,
                float* dw, float* dbias, std::byte* workspace, int threads) {
  const GradientPoints points(shape, workspace);
  const Points &v = points.v, &z = points.z;
  const std::int64_t tiles = points.chunk, panels = shape.outputs / kPanel;
  constexpr std::int64_t kLanes = Loops::kLanes;
  constexpr std::int64_t stride = weight_stride(kGradientInputs, kPanel);
  constexpr std::int64_t u_panel = kPoints * stride;
  constexpr std::int64_t kMost = Loops::kMostPanels;
#pragma omp parallel num_threads(threads)
  {
    transform_chunk<Loops, Scheme>(shape, x, dy, 0, tiles, points);
    float* u = points.rest + omp_get_thread_num() * kMost * u_panel;
    const PanelRange mine(panels);
    for (std::int64_t panel = mine.begin; panel < mine.end; panel += kMost) {
      const std::int64_t together = std::min(kMost, mine.end - panel);
      for (std::int64_t begin = 0; begin < shape.inputs; begin += kGradientInputs) {
        const std::int64_t inputs = std::min(kGradientInputs, shape.inputs - begin);
        for (const Slot& slot : kSlotsByPoint<Scheme::kLine>) {
          // One row of each panel during each of the first points' products.
          if (slot.first_of_point && slot.point < kPanel) {
            for (std::int64_t i = 0; i < together; ++i) {
              const std::int64_t row = (panel + i) * kPanel + slot.point;
              blocked::prefetch(dw + (row * shape.inputs + begin) * 9, inputs * 9);
            }
          }
          Loops::multiply(GradientProduct{v.at(slot.index, begin), v.block(kLanes), inputs,
                                          z.at(slot.index, panel * kPanel), z.block(kLanes), tiles,
                                          together, u + slot.point * stride, u_panel,
                                          slot.first_of_point});
        }
        for (std::int64_t i = 0; i < together; ++i) {
          transform_weight_gradient<Scheme::kStrided>(shape, u + i * u_panel, stride, panel + i,
                                                      begin, inputs, add, dw);
        }
      }
      for (std::int64_t i = 0; dbias && i < together; ++i)
        sum_panel(shape, dy, panel + i, add, dbias);
    }
  }
}

template <class Loops, class Scheme, class Element>
void sum_gradient(const WinogradShape& shape, const Element* x, const Element* dy, bool add,
                  float* dw, float* dbias, std::byte* workspace, int threads) {
  const auto run = has_one_gradient_chunk(shape) ? sum_panels<Loops, Scheme, Element>
                                                 : sum_chunks<Loops, Scheme, Element>;
  run(shape, x, dy, add, dw, dbias, workspace, threads);
}

/// Calls `run` with the loops and the forward scheme for a shape.
template <class Run>
void choose(const WinogradShape& shape, const Run& run) {
  if (is_wide(shape.lanes)) {
    shape.stride == 2 ? run(Wide(), Wide::Strided()) : run(Wide(), Wide::Unstrided());
  } else {
    shape.stride == 2 ? run(Narrow(), Narrow::Strided()) : run(Narrow(), Narrow::Unstrided());
  }
}

}  // namespace

std::size_t winograd_workspace_bytes(const WinogradShape& shape, int threads) {
  std::int64_t most = 0;
  for (const Pass& pass : {forward(shape), transposed(shape)}) {
    const std::int64_t slots = pass.slots, chunk = chunk_tiles(pass, threads);
    most = std::max(
        most, has_few_tiles(pass)
                  ? points_floats(slots, pass.inputs, pass.tiles()) + threads * panel_floats(pass)
                  : kPoints * weight_stride(pass.inputs, pass.outputs) +
                        threads * (points_floats(slots, pass.inputs, chunk) +
                                   points_floats(slots, pass.outputs, chunk)));
  }
  return static_cast<std::size_t>(most) * sizeof(float);
}

std::size_t winograd_weight_gradient_workspace_bytes(const WinogradShape& shape, int threads) {
  const std::int64_t chunk = gradient_chunk_tiles(shape);
  const std::int64_t sums =
      has_one_gradient_chunk(shape)
          ? threads * most_panels(shape.lanes) * kPoints * weight_stride(kGradientInputs, kPanel)
          : kPoints * weight_stride(shape.inputs, shape.outputs);
  return static_cast<std::size_t>(sums + points_floats(slots_of(shape), shape.inputs, chunk) +
                                  points_floats(slots_of(shape), shape.outputs, chunk)) *
         sizeof(float);
}

template <class Element>
void winograd_forward(const WinogradShape& shape, const Element* x,
                      const ConvolutionWeights<Element>& w, const float* bias, Element* y,
                      std::byte* workspace, int threads) {
  const std::int64_t row = shape.inputs * 9;
  const Weights<Element> weights{w.data, row, w.packed ? 9 * kPanel : 9, /*reversed=*/false,
                                 w.packed};
  choose(shape, [&]<class Loops, class Scheme>(Loops, Scheme) {
    convolve<Loops, Scheme>(forward(shape), x, weights, bias, y, workspace, threads);
  });
}

template <class Element>
void winograd_input_gradient(const WinogradShape& shape, const Element* dy,
                             const ConvolutionWeights<Element>& w, Element* dx,
                             std::byte* workspace, int threads) {
  const std::int64_t row = shape.inputs * 9;
  const Weights<Element> weights =
      w.packed ? Weights<Element>{w.data, shape.outputs * 9, 9 * kPanel, false, true}
               : Weights<Element>{w.data, 9, row, /*reversed=*/true, false};
  choose(shape, [&]<class Loops, class Scheme>(Loops, Scheme) {
    convolve<Loops, typename Scheme::InputGradient>(transposed(shape), dy, weights, nullptr, dx,
                                                    workspace, threads);
  });
}

template <class Element>
void winograd_weight_gradient(const WinogradShape& shape, const Element* x, const Element* dy,
                              bool add, float* dw, float* dbias, std::byte* workspace,
                              int threads) {
  choose(shape, [&]<class Loops, class Scheme>(Loops, Scheme) {
    sum_gradient<Loops, Scheme>(shape, x, dy, add, dw, dbias, workspace, threads);
  });
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
