// Weight gradients by Winograd's minimal filtering (winograd_cpu.h).
#include <omp.h>

#include <algorithm>

#include "ops/conv/channel_sums_cpu.h"
#include "ops/conv/winograd_cpu.h"
#include "ops/conv/winograd_passes_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {
namespace {

using namespace winograd;

std::int64_t gradient_chunk_tiles(const Pass& pass) {
  const std::int64_t most = 96 * kPoints / pass.slots / pass.slices_of_product();
  return std::min(std::max<std::int64_t>(1, most), pass.tiles());
}

bool has_one_gradient_chunk(const Pass& pass) { return gradient_chunk_tiles(pass) == pass.tiles(); }

/// Input channels whose gradients for one panel are summed before they are transformed, where all
/// tiles make one chunk: the sums stay in the second-level cache.
constexpr std::int64_t kGradientInputs = 48;

/// dw = G' du G for one panel of 16 output channels, `inputs` channels from `begin` and one depth
/// tap; du: (input channel, 16), points `stride` apart. Written, or added to what is there.
template <bool kStrided>
void transform_weight_gradient(const WinogradShape& shape, const float* du, std::int64_t stride,
                               std::int64_t panel, std::int64_t begin, std::int64_t inputs,
                               std::int64_t tap, bool add, float* dw) {
  const std::int64_t c_stride = 9 * shape.depth.kernel, k_stride = shape.inputs * c_stride;
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
      float* to = dw + (panel * kPanel + half) * k_stride + (begin + c) * c_stride + tap * 9;
      Vector8 weights[9], rows[8];
      for (int i = 0; i < 3; ++i)
        weight_gradient_line<kStrided>(lines + 6 * i, 1, weights + 3 * i, 1);
      for (int i = 0; i < 8; ++i) rows[i] = weights[i];
      transpose(rows);
      for (int lane = 0; lane < 8; ++lane) {
        float* window = to + lane * k_stride;
        store8(window, add ? load8(window) + rows[lane] : rows[lane]);
        window[8] = add ? window[8] + weights[8][lane] : weights[8][lane];
      }
    }
  }
}

/// The points of one chunk of tiles, for some input and output channels.
struct GradientPoints {
  Points v, z;
  float* end;

  GradientPoints(const Pass& pass, std::int64_t inputs, std::int64_t outputs, float* data)
      : v(points_at(data, inputs, gradient_chunk_tiles(pass) * pass.slices_in)),
        z(points_at(data + input_floats(pass, inputs, gradient_chunk_tiles(pass)), outputs,
                    gradient_chunk_tiles(pass) * pass.slices_out)),
        end(data + floats(pass, inputs, outputs)) {}

  static std::int64_t floats(const Pass& pass, std::int64_t inputs, std::int64_t outputs) {
    const std::int64_t chunk = gradient_chunk_tiles(pass);
    return input_floats(pass, inputs, chunk) + output_floats(pass, outputs, chunk);
  }

  /// Sums for `inputs` channels from `begin` and panels of output channels over `count` tiles.
  template <class Loops>
  void multiply(const Slot& slot, const DepthTap& tap, std::int64_t begin, std::int64_t inputs,
                std::int64_t panel, std::int64_t panels, std::int64_t count, float* u,
                std::int64_t u_panel, bool overwrite) const {
    Loops::multiply(GradientProduct{
        v.at(slot.index, begin) + tap.input * count * Loops::kLanes, v.block(Loops::kLanes), inputs,
        z.at(slot.index, panel * kPanel) + tap.output * count * Loops::kLanes,
        z.block(Loops::kLanes), tap.count * count, panels, u, u_panel, overwrite});
  }
};

template <class Element>
void sum_panel(const WinogradShape& shape, const Element* dy, std::int64_t panel, bool add,
               float* dbias) {
  const blocked::ChannelBlocks tensor{
      shape.outputs, shape.depth.output * shape.out_height * shape.out_width, shape.lanes};
  for (std::int64_t block = 2 * panel; block < 2 * panel + 2; ++block)
    sum_channels(tensor, shape.batch, dy, block, add, dbias);
}

/// Channels in groups, split as evenly as their number allows.
struct ChannelSplit {
  std::int64_t channels, group, parts;

  std::int64_t groups() const { return (channels + group - 1) / group; }
  std::int64_t begin(std::int64_t part) const {
    return std::min(channels, groups() * part / parts * group);
  }
  std::int64_t most() const { return std::min(channels, (groups() + parts - 1) / parts * group); }
};

/// Which input and output channels of a weight gradient each thread takes. It transforms their
/// tiles itself, some of them like other threads: reading tiles that another core has transformed
/// takes longer on CPUs whose cores share no fast cache.
struct ChannelGrid {
  ChannelSplit inputs, outputs;

  ChannelGrid(const WinogradShape& shape, int threads)
      : inputs{shape.inputs, kPanel, 1},
        outputs{shape.outputs, kPanel * most_panels(shape.lanes), 1} {
    // A number of a transformed tile takes about as long as its products with as many channels.
    constexpr std::int64_t kTransform = 16;
    std::int64_t best = 0;
    for (std::int64_t rows = 1; rows <= std::min<std::int64_t>(threads, inputs.groups()); ++rows) {
      ChannelSplit in = inputs, out = outputs;
      in.parts = rows;
      out.parts = std::min(threads / rows, out.groups());
      const std::int64_t cost = in.most() * out.most() + kTransform * (in.most() + out.most());
      if (best != 0 && cost >= best) continue;
      best = cost;
      inputs = in;
      outputs = out;
    }
  }
  std::int64_t parts() const { return inputs.parts * outputs.parts; }
};

/// A weight gradient whose sums over all tiles are made chunk by chunk.
template <class Loops, class Scheme, class Element>
void sum_chunks(const WinogradShape& shape, const Element* x, const Element* dy, bool add,
                float* dw, float* dbias, std::byte* workspace, int threads) {
  const Pass pass = forward(shape);
  const FeatureMap from = input_map(pass), to = output_map(pass);
  const ChannelGrid grid(shape, threads);
  const std::int64_t tiles = pass.tiles(), chunk = gradient_chunk_tiles(pass);
  const std::int64_t taps = shape.depth.kernel;
  constexpr std::int64_t kMost = Loops::kMostPanels, kLanes = Loops::kLanes;
  const std::int64_t stride = weight_stride(shape.inputs, shape.outputs);
  auto* sums = reinterpret_cast<float*>(workspace);
  float* rest = sums + taps * kPoints * stride;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t part = 0; part < grid.parts(); ++part) {
    const std::int64_t row = part / grid.outputs.parts, column = part % grid.outputs.parts;
    const std::int64_t begin = grid.inputs.begin(row), end = grid.inputs.begin(row + 1);
    const std::int64_t first_output = grid.outputs.begin(column);
    const std::int64_t panel_begin = first_output / kPanel;
    const std::int64_t panel_end = grid.outputs.begin(column + 1) / kPanel;
    const std::int64_t inputs = grid.inputs.most(), outputs = grid.outputs.most();
    const GradientPoints points(pass, inputs, outputs,
                                rest + part * GradientPoints::floats(pass, inputs, outputs));
    for (std::int64_t first = 0; first < tiles; first += chunk) {
      const std::int64_t count = std::min(chunk, tiles - first);
      for (std::int64_t c = begin; c < end; c += kLanes)
        Loops::template transform_input<Scheme>(from, x, c, first, count, points.v, c - begin);
      for (std::int64_t k = first_output; k < panel_end * kPanel; k += kLanes) {
        Loops::template transform_gradient<Scheme>(to, dy, k, first, count, points.z,
                                                   k - first_output);
      }
      for (const Slot& slot : kSlotsByPoint<Scheme::kLine>) {
        for (std::int64_t panel = panel_begin; panel < panel_end; panel += kMost) {
          float* u = sums + slot.point * stride + (panel * shape.inputs + begin) * kPanel;
          for (const DepthTap& tap : pass.depth_taps()) {
            points.multiply<Loops>(slot, tap, 0, end - begin, panel - panel_begin,
                                   std::min(kMost, panel_end - panel), count,
                                   u + tap.tap * kPoints * stride, shape.inputs * kPanel,
                                   /*overwrite=*/slot.first_of_point && first == 0);
          }
        }
      }
    }
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const float* u = sums + tap * kPoints * stride + (panel * shape.inputs + begin) * kPanel;
        transform_weight_gradient<Scheme::kStrided>(shape, u, stride, panel, begin, end - begin,
                                                    tap, add, dw);
      }
      if (dbias && row == 0) sum_panel(shape, dy, panel, add, dbias);
    }
  }
}

/// The points of all tiles, by all threads of a parallel region.
template <class Loops, class Scheme, class Element>
void transform_tiles(const Pass& pass, const Element* x, const Element* dy,
                     const GradientPoints& points) {
  const FeatureMap from = input_map(pass), to = output_map(pass);
  const std::int64_t tiles = pass.tiles();
#pragma omp for schedule(static, 1)
  for (std::int64_t channel = 0; channel < pass.inputs + pass.outputs; channel += Loops::kLanes) {
    if (channel < pass.inputs) {
      Loops::template transform_input<Scheme>(from, x, channel, 0, tiles, points.v, channel);
    } else {
      const std::int64_t k = channel - pass.inputs;
      Loops::template transform_gradient<Scheme>(to, dy, k, 0, tiles, points.z, k);
    }
  }
}

/// The same where all tiles make one chunk: the sums of a few channels are complete at once.
template <class Loops, class Scheme, class Element>
void sum_panels(const WinogradShape& shape, const Element* x, const Element* dy, bool add,
                float* dw, float* dbias, std::byte* workspace, int threads) {
  const Pass pass = forward(shape);
  const GradientPoints points(pass, shape.inputs, shape.outputs,
                              reinterpret_cast<float*>(workspace));
  const std::int64_t tiles = pass.tiles(), panels = shape.outputs / kPanel;
  const std::int64_t taps = shape.depth.kernel;
  constexpr std::int64_t stride = weight_stride(kGradientInputs, kPanel);
  constexpr std::int64_t u_panel = kPoints * stride;
  constexpr std::int64_t kMost = Loops::kMostPanels;
#pragma omp parallel num_threads(threads)
  {
    transform_tiles<Loops, Scheme>(pass, x, dy, points);
    float* u = points.end + omp_get_thread_num() * kMost * u_panel;
    const PanelRange mine(panels);
    for (std::int64_t panel = mine.begin; panel < mine.end; panel += kMost) {
      const std::int64_t together = std::min(kMost, mine.end - panel);
      // Parts: a depth tap for some input channels.
      const std::int64_t parts = (shape.inputs + kGradientInputs - 1) / kGradientInputs * taps;
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t begin = part / taps * kGradientInputs;
        const DepthTap& tap = pass.taps[static_cast<std::size_t>(part % taps)];
        const std::int64_t inputs = std::min(kGradientInputs, shape.inputs - begin);
        for (const Slot& slot : kSlotsByPoint<Scheme::kLine>) {
          // One row of each panel during each of the first points' products.
          if (part % taps == 0 && slot.first_of_point && slot.point < kPanel) {
            for (std::int64_t i = 0; i < together; ++i) {
              const std::int64_t row = (panel + i) * kPanel + slot.point;
              blocked::prefetch(dw + (row * shape.inputs + begin) * 9 * taps, inputs * 9 * taps);
            }
          }
          points.multiply<Loops>(slot, tap, begin, inputs, panel, together, tiles,
                                 u + slot.point * stride, u_panel, slot.first_of_point);
        }
        for (std::int64_t i = 0; i < together; ++i) {
          transform_weight_gradient<Scheme::kStrided>(shape, u + i * u_panel, stride, panel + i,
                                                      begin, inputs, tap.tap, add, dw);
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
  const auto run = has_one_gradient_chunk(forward(shape)) ? sum_panels<Loops, Scheme, Element>
                                                          : sum_chunks<Loops, Scheme, Element>;
  run(shape, x, dy, add, dw, dbias, workspace, threads);
}

}  // namespace

std::size_t winograd_weight_gradient_workspace_bytes(const WinogradShape& shape, int threads) {
  const Pass pass = forward(shape);
  std::int64_t floats = 0;
  if (has_one_gradient_chunk(pass)) {
    floats = GradientPoints::floats(pass, shape.inputs, shape.outputs) +
             threads * most_panels(shape.lanes) * kPoints * weight_stride(kGradientInputs, kPanel);
  } else {
    const ChannelGrid grid(shape, threads);
    floats = shape.depth.kernel * kPoints * weight_stride(shape.inputs, shape.outputs) +
             grid.parts() * GradientPoints::floats(pass, grid.inputs.most(), grid.outputs.most());
  }
  return static_cast<std::size_t>(floats) * sizeof(float);
}

template <class Element>
void winograd_weight_gradient(const WinogradShape& shape, const Element* x, const Element* dy,
                              bool add, float* dw, float* dbias, std::byte* workspace,
                              int threads) {
  choose(shape, [&]<class Loops, class Scheme>(Loops, Scheme) {
    sum_gradient<Loops, Scheme>(shape, x, dy, add, dw, dbias, workspace, threads);
  });
}

#define PIPETRAIN_WINOGRAD_OF(Element)                                                         \
  template void winograd_weight_gradient(const WinogradShape&, const Element*, const Element*, \
                                         bool, float*, float*, std::byte*, int)
PIPETRAIN_WINOGRAD_OF(float);
PIPETRAIN_WINOGRAD_OF(BFloat16);
#undef PIPETRAIN_WINOGRAD_OF

}  // namespace pipetrain
