#include "ops/conv/winograd_cpu.h"

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "ops/conv/winograd_passes_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {
namespace {

using namespace winograd;

/// Tiles, each with all its slices, that one thread takes from input to output: their points stay
/// in the second-level cache, unless there are so many slices, or so many channels that the
/// weights' traffic outweighs that. Threads have equally many chunks, unless those had too few
/// tiles for the products.
std::int64_t chunk_tiles(const Pass& pass, int threads) {
  const std::int64_t slices = pass.slices_of_product();
  const std::int64_t least = (6 + slices - 1) / slices;
  const std::int64_t together = pass.slots > kPoints                ? 12
                                : pass.inputs + pass.outputs <= 256 ? 24
                                                                    : 48;
  const std::int64_t most = std::max<std::int64_t>(1, together / slices), tiles = pass.tiles();
  const std::int64_t chunks = (tiles + most * threads - 1) / (most * threads) * threads;
  return std::max((tiles + chunks - 1) / std::max<std::int64_t>(1, chunks), std::min(least, tiles));
}

/// Input channels whose weights for one panel are transformed together: they stay in the
/// second-level cache until they have been used.
constexpr std::int64_t kInputsTogether = 64;
static_assert(kInputsTogether % kInputsOfSum == 0);
using PanelStride = std::integral_constant<std::int64_t, weight_stride(kInputsTogether, kPanel)>;

/// Floats that a thread needs for its panels of weights and their products.
std::int64_t panel_floats(const Pass& pass) {
  const std::int64_t panels = most_panels(pass.lanes);
  return panels * kPoints * PanelStride::value + output_floats(pass, panels * kPanel, pass.tiles());
}

/// The whole of a pass with many tiles: all weights are transformed first, then threads take chunks
/// of tiles from input to output.
template <class Loops, class Scheme, class Element>
void convolve_chunks(const Pass& pass, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(pass), to = output_map(pass);
  const std::int64_t tiles = pass.tiles(), chunk = chunk_tiles(pass, threads);
  const std::int64_t chunks = (tiles + chunk - 1) / chunk, panels = pass.outputs / kPanel;
  const std::int64_t v_floats = input_floats(pass, pass.inputs, chunk);
  const std::int64_t m_floats = output_floats(pass, pass.outputs, chunk);
  auto* weights = reinterpret_cast<float*>(workspace);
  const std::int64_t stride = weight_stride(pass.inputs, pass.outputs), taps = pass.depth.kernel;
  const bool complete = pass.first_tap_covers_all();
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t item = 0; item < panels * taps; ++item) {
      const std::int64_t panel = item / taps;
      const DepthTap& tap = pass.taps[static_cast<std::size_t>(item % taps)];
      if (tap.count == 0) continue;
      float* u = weights + tap.tap * kPoints * stride + panel * pass.inputs * kPanel;
      transform_weights<Scheme::kStrided>(w.at(tap), 0, pass.inputs, panel, u, stride);
    }
    float* own = weights + taps * kPoints * stride + omp_get_thread_num() * (v_floats + m_floats);
    const Points v = points_at(own, pass.inputs, chunk * pass.slices_in);
    const Points m = points_at(own + v_floats, pass.outputs, chunk * pass.slices_out);
#pragma omp for schedule(static)
    for (std::int64_t piece = 0; piece < chunks; ++piece) {
      const std::int64_t first = piece * chunk, count = std::min(chunk, tiles - first);
      for (std::int64_t c = 0; c < pass.inputs; c += Loops::kLanes) {
        Loops::template transform_input<Scheme>(from, x, c, first, count, v, c);
      }
      if (!complete) std::fill_n(m.data, m_floats, 0.0F);
      for (int point = 0; point < kPoints; ++point) {
        for (std::int64_t panel = 0; panel < panels; panel += Loops::kMostPanels) {
          const float* u = weights + point * stride + panel * pass.inputs * kPanel;
          for (const Slot& slot : slots_of_point<Scheme::kLine>(point)) {
            for (const DepthTap& tap : pass.depth_taps()) {
              Loops::multiply(PointProduct{
                  v.at(slot.index, 0) + tap.input * count * Loops::kLanes, v.block(Loops::kLanes),
                  pass.inputs, u + tap.tap * kPoints * stride, pass.inputs * kPanel,
                  std::min(Loops::kMostPanels, panels - panel), tap.count * count,
                  m.at(slot.index, panel * kPanel) + tap.output * count * Loops::kLanes,
                  m.block(Loops::kLanes), /*overwrite=*/complete && &tap == pass.taps.data()});
            }
          }
        }
      }
      for (std::int64_t k = 0; k < pass.outputs; k += Loops::kLanes) {
        Loops::template transform_output<Scheme>(to, m, k, k, first, count, bias, y);
      }
    }
  }
}

/// Prefetches the `point`-th share of packed windows: of a depth tap, for `panels` panels from
/// `panel` and `inputs` input channels from `begin`.
template <class Element>
void prefetch_windows(const Weights<Element>& w, const DepthTap& tap, std::int64_t panel,
                      std::int64_t panels, std::int64_t begin, std::int64_t inputs, int point) {
  const Element* windows = w.at(tap).data + panel * kPanel * w.k_stride + begin * w.c_stride;
  const std::int64_t end = inputs * (point + 1) / kPoints;
  for (std::int64_t c = inputs * point / kPoints; c < end; ++c) {
    for (std::int64_t i = 0; i < panels; ++i)
      blocked::prefetch(windows + i * kPanel * w.k_stride + c * w.c_stride, 9 * kPanel);
  }
}

/// The same with few tiles, where the transformed weights are the largest tensor of all: threads
/// take panels of 16 output channels, of which the weights are used while they are in the cache.
template <class Loops, class Scheme, class Element>
void convolve_panels(const Pass& pass, const Element* x, const Weights<Element>& w,
                     const float* bias, Element* y, std::byte* workspace, int threads) {
  const FeatureMap from = input_map(pass), to = output_map(pass);
  const std::int64_t tiles = pass.tiles(), panels = pass.outputs / kPanel, taps = pass.depth.kernel;
  constexpr PanelStride stride;
  constexpr std::int64_t u_panel = kPoints * stride;
  constexpr std::int64_t kMost = Loops::kMostPanels;
  const Points v =
      points_at(reinterpret_cast<float*>(workspace), pass.inputs, tiles * pass.slices_in);
  float* rest = v.data + input_floats(pass, pass.inputs, tiles);
  const bool complete = pass.first_tap_covers_all();
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t c = 0; c < pass.inputs; c += Loops::kLanes) {
      Loops::template transform_input<Scheme>(from, x, c, 0, tiles, v, c);
    }
    float* u = rest + omp_get_thread_num() * panel_floats(pass);
    const Points m = points_at(u + kMost * u_panel, kMost * kPanel, tiles * pass.slices_out);
    const PanelRange mine(panels);
    for (std::int64_t panel = mine.begin; panel < mine.end; panel += kMost) {
      const std::int64_t together = std::min(kMost, mine.end - panel);
      if (!complete) std::fill_n(m.data, output_floats(pass, kMost * kPanel, tiles), 0.0F);
      // Parts: a depth tap for some input channels.
      const std::int64_t parts = (pass.inputs + kInputsTogether - 1) / kInputsTogether * taps;
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t begin = part / taps * kInputsTogether;
        const std::int64_t inputs = std::min(kInputsTogether, pass.inputs - begin);
        const DepthTap& tap = pass.taps[static_cast<std::size_t>(part % taps)];
        if (tap.count == 0) continue;
        for (std::int64_t i = 0; i < together; ++i) {
          transform_weights<Scheme::kStrided>(w.at(tap), begin, inputs, panel + i, u + i * u_panel,
                                              stride);
        }
        // Packed weights that are transformed next come from memory in the meantime.
        const bool is_last = part + 1 == parts;
        const std::int64_t next_panel = is_last ? panel + kMost : panel;
        const std::int64_t next_begin = is_last ? 0 : (part + 1) / taps * kInputsTogether;
        const DepthTap& next_tap = pass.taps[static_cast<std::size_t>((part + 1) % taps)];
        const std::int64_t next_inputs = std::min(kInputsTogether, pass.inputs - next_begin);
        for (const Slot& slot : kSlotsByPoint<Scheme::kLine>) {
          if (w.packed && slot.first_of_point)
            prefetch_windows(w, next_tap, next_panel, together, next_begin, next_inputs,
                             slot.point);
          Loops::multiply(PointProduct{
              v.at(slot.index, begin) + tap.input * tiles * Loops::kLanes, v.block(Loops::kLanes),
              inputs, u + slot.point * stride, u_panel, together, tap.count * tiles,
              m.at(slot.index, 0) + tap.output * tiles * Loops::kLanes, m.block(Loops::kLanes),
              /*overwrite=*/complete && part == 0});
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

}  // namespace

std::size_t winograd_workspace_bytes(const WinogradShape& shape, bool input_gradient, int threads) {
  const Pass pass = pass_of(shape, input_gradient);
  const std::int64_t chunk = chunk_tiles(pass, threads);
  const std::int64_t floats =
      has_few_tiles(pass)
          ? input_floats(pass, pass.inputs, pass.tiles()) + threads * panel_floats(pass)
          : pass.depth.kernel * kPoints * weight_stride(pass.inputs, pass.outputs) +
                threads * (input_floats(pass, pass.inputs, chunk) +
                           output_floats(pass, pass.outputs, chunk));
  return static_cast<std::size_t>(floats) * sizeof(float);
}

template <class Element>
void winograd_forward(const WinogradShape& shape, const Element* x,
                      const ConvolutionWeights<Element>& w, const float* bias, Element* y,
                      std::byte* workspace, int threads) {
  const std::int64_t window = 9 * shape.depth.kernel, width = w.packed ? kPanel : 1;
  const Weights<Element> weights{.data = w.data,
                                 .k_stride = shape.inputs * window,
                                 .c_stride = window * width,
                                 .reversed = false,
                                 .packed = w.packed,
                                 .first_tap = 0,
                                 .tap_step = 9 * width};
  choose(shape, [&]<class Loops, class Scheme>(Loops, Scheme) {
    convolve<Loops, Scheme>(forward(shape), x, weights, bias, y, workspace, threads);
  });
}

template <class Element>
void winograd_input_gradient(const WinogradShape& shape, const Element* dy,
                             const ConvolutionWeights<Element>& w, Element* dx,
                             std::byte* workspace, int threads) {
  const std::int64_t taps = shape.depth.kernel, window = 9 * taps;
  Weights<Element> weights{.data = w.data,
                           .k_stride = window,
                           .c_stride = shape.inputs * window,
                           .reversed = true,
                           .packed = false,
                           .first_tap = 0,
                           .tap_step = 9};
  if (w.packed) {  // all taps are reversed already
    weights = {.data = w.data,
               .k_stride = shape.outputs * window,
               .c_stride = window * kPanel,
               .reversed = false,
               .packed = true,
               .first_tap = (taps - 1) * 9 * kPanel,
               .tap_step = -9 * kPanel};
  }
  choose(shape, [&]<class Loops, class Scheme>(Loops, Scheme) {
    convolve<Loops, typename Scheme::InputGradient>(transposed(shape), dy, weights, nullptr, dx,
                                                    workspace, threads);
  });
}

#define PIPETRAIN_WINOGRAD_OF(Element)                                                            \
  template void winograd_forward(const WinogradShape&, const Element*,                            \
                                 const ConvolutionWeights<Element>&, const float*, Element*,      \
                                 std::byte*, int);                                                \
  template void winograd_input_gradient(const WinogradShape&, const Element*,                     \
                                        const ConvolutionWeights<Element>&, Element*, std::byte*, \
                                        int)
PIPETRAIN_WINOGRAD_OF(float);
PIPETRAIN_WINOGRAD_OF(BFloat16);
#undef PIPETRAIN_WINOGRAD_OF

}  // namespace pipetrain
