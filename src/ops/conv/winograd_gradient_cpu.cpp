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
/// tap; `du` of a point and a position in (input channel, 16) gives 8 sums. Written, or added to
/// what is there.
template <bool kStrided, class Sums>
void transform_weight_gradient(const WinogradShape& shape, const Sums& du, std::int64_t panel,
                               std::int64_t begin, std::int64_t inputs, std::int64_t tap, bool add,
                               float* dw) {
  const std::int64_t c_stride = 9 * shape.depth.kernel, k_stride = shape.inputs * c_stride;
  for (std::int64_t c = 0; c < inputs; ++c) {
    for (std::int64_t half = 0; half < kPanel; half += 8) {
      Vector8 lines[18];  // [row of the window][point column]
      for (int j = 0; j < 6; ++j) {
        Vector8 points[6];
        for (int i = 0; i < 6; ++i) {
          points[i] = du(6 * i + j, c * kPanel + half);
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

/// `count` items in groups, split into parts of almost as many groups.
struct Split {
  std::int64_t count, group, parts = 1;

  std::int64_t groups() const { return (count + group - 1) / group; }
  std::int64_t begin(std::int64_t part) const {
    return std::min(count, groups() * part / parts * group);
  }
  /// Items of the largest part.
  std::int64_t most() const { return std::min(count, (groups() + parts - 1) / parts * group); }
};

/// The parts of a weight gradient: ranges of tiles, and some input and output channels. A thread
/// transforms the tiles of its parts itself, partly the same as other threads: it takes longer to
/// read what another core has transformed where cores share no cache. The ranges depend on the
/// shape alone, since they order the sums.
struct GradientParts {
  Split tiles, inputs, outputs;

  GradientParts(const Pass& pass, int threads)
      : tiles{pass.tiles(), gradient_chunk_tiles(pass)},
        inputs{pass.inputs, kPanel},
        outputs{pass.outputs, kPanel * most_panels(pass.lanes)} {
    // Few channels make few parts. The sums of many would take long to read for each range.
    constexpr std::int64_t kEnough = 32;
    const std::int64_t ranges = kEnough * 512 / (pass.inputs * pass.outputs);
    tiles.parts = std::clamp<std::int64_t>(ranges, 1, tiles.groups());
    // A number of a transformed tile takes about as long as its products with as many channels.
    constexpr std::int64_t kTransform = 16;
    std::int64_t best = 0;
    Split in = inputs, out = outputs;
    for (in.parts = 1; in.parts <= std::min<std::int64_t>(in.groups(), threads); ++in.parts) {
      const std::int64_t most = std::min(out.groups(), threads / in.parts);
      for (out.parts = 1; out.parts <= most; ++out.parts) {
        const std::int64_t parts = tiles.parts * in.parts * out.parts;
        const std::int64_t cost = (parts + threads - 1) / threads *
                                  (in.most() * out.most() + kTransform * (in.most() + out.most()));
        if (best != 0 && cost >= best) continue;
        best = cost;
        inputs = in;
        outputs = out;
      }
    }
  }
  std::int64_t count() const { return tiles.parts * inputs.parts * outputs.parts; }
};

/// One of the parts: tiles [begin, end), input channels [c_begin, c_end) and output channels
/// [k_begin, k_end).
struct GradientPart {
  std::int64_t range, begin, end, c_begin, c_end, k_begin, k_end;

  GradientPart(const GradientParts& parts, std::int64_t index) : range(index % parts.tiles.parts) {
    const std::int64_t channels = index / parts.tiles.parts;
    const std::int64_t row = channels % parts.inputs.parts, column = channels / parts.inputs.parts;
    begin = parts.tiles.begin(range), end = parts.tiles.begin(range + 1);
    c_begin = parts.inputs.begin(row), c_end = parts.inputs.begin(row + 1);
    k_begin = parts.outputs.begin(column), k_end = parts.outputs.begin(column + 1);
  }
};

/// The sums of one part over its tiles, chunk by chunk, all points of its channels. `sums` are
/// those of its range.
template <class Loops, class Scheme, class Element>
void sum_part(const Pass& pass, const GradientPart& part, const Element* x, const Element* dy,
              const GradientPoints& points, float* sums) {
  const FeatureMap from = input_map(pass), to = output_map(pass);
  const std::int64_t stride = weight_stride(pass.inputs, pass.outputs);
  const std::int64_t chunk = gradient_chunk_tiles(pass);
  constexpr std::int64_t kMost = Loops::kMostPanels, kLanes = Loops::kLanes;
  for (std::int64_t first = part.begin; first < part.end; first += chunk) {
    const std::int64_t count = std::min(chunk, part.end - first);
    for (std::int64_t c = part.c_begin; c < part.c_end; c += kLanes)
      Loops::template transform_input<Scheme>(from, x, c, first, count, points.v, c - part.c_begin);
    for (std::int64_t k = part.k_begin; k < part.k_end; k += kLanes) {
      Loops::template transform_gradient<Scheme>(to, dy, k, first, count, points.z,
                                                 k - part.k_begin);
    }
    for (const Slot& slot : kSlotsByPoint<Scheme::kLine>) {
      for (std::int64_t k = part.k_begin; k < part.k_end; k += kMost * kPanel) {
        float* u = sums + slot.point * stride + k * pass.inputs + part.c_begin * kPanel;
        for (const DepthTap& tap : pass.depth_taps()) {
          points.multiply<Loops>(slot, tap, 0, part.c_end - part.c_begin,
                                 (k - part.k_begin) / kPanel,
                                 std::min(kMost, (part.k_end - k) / kPanel), count,
                                 u + tap.tap * kPoints * stride, pass.inputs * kPanel,
                                 /*overwrite=*/slot.first_of_point && first == part.begin);
        }
      }
    }
  }
}

/// A weight gradient whose sums over all tiles are made in parts.
template <class Loops, class Scheme, class Element>
void sum_parts(const WinogradShape& shape, const Element* x, const Element* dy, bool add, float* dw,
               float* dbias, std::byte* workspace, int threads) {
  const Pass pass = forward(shape);
  const GradientParts parts(pass, threads);
  const std::int64_t inputs = parts.inputs.most(), outputs = parts.outputs.most();
  const std::int64_t stride = weight_stride(shape.inputs, shape.outputs);
  const std::int64_t taps = shape.depth.kernel, next = taps * kPoints * stride;
  const std::int64_t ranges = parts.tiles.parts;
  auto* sums = reinterpret_cast<float*>(workspace);
  float* rest = sums + ranges * next;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t index = 0; index < parts.count(); ++index) {
      const GradientPart part(parts, index);
      float* own = rest + omp_get_thread_num() * GradientPoints::floats(pass, inputs, outputs);
      sum_part<Loops, Scheme>(pass, part, x, dy, {pass, inputs, outputs, own},
                              sums + part.range * next);
    }
    // The parts of the same channels share their inputs, panel by panel.
#pragma omp for schedule(static) nowait
    for (std::int64_t index = 0; index < parts.count(); ++index) {
      const GradientPart part(parts, index);
      const std::int64_t width = part.c_end - part.c_begin;
      const std::int64_t items = (part.k_end - part.k_begin) / kPanel * width;
      const std::int64_t end = items * (part.range + 1) / ranges;
      std::int64_t count = 0;
      for (std::int64_t item = items * part.range / ranges; item < end; item += count) {
        const std::int64_t panel = part.k_begin / kPanel + item / width;
        const std::int64_t begin = part.c_begin + item % width;
        count = std::min(end - item, width - item % width);
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          const float* u = sums + tap * kPoints * stride + (panel * shape.inputs + begin) * kPanel;
          const auto sum = [=](std::int64_t point, std::int64_t position) {
            const float* from = u + point * stride + position;
            Vector8 total = load8(from);
            for (std::int64_t range = 1; range < ranges; ++range)
              total += load8(from + range * next);
            return total;
          };
          transform_weight_gradient<Scheme::kStrided>(shape, sum, panel, begin, count, tap, add,
                                                      dw);
        }
      }
    }
    if (dbias) {
#pragma omp for schedule(static)
      for (std::int64_t panel = 0; panel < shape.outputs / kPanel; ++panel)
        sum_panel(shape, dy, panel, add, dbias);
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
          const auto sum = [from = u + i * u_panel](std::int64_t point, std::int64_t position) {
            return load8(from + point * stride + position);
          };
          transform_weight_gradient<Scheme::kStrided>(shape, sum, panel + i, begin, inputs, tap.tap,
                                                      add, dw);
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
                                                          : sum_parts<Loops, Scheme, Element>;
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
    const GradientParts parts(pass, threads);
    const std::int64_t inputs = parts.inputs.most(), outputs = parts.outputs.most();
    floats = parts.tiles.parts * shape.depth.kernel * kPoints *
                 weight_stride(shape.inputs, shape.outputs) +
             std::min<std::int64_t>(threads, parts.count()) *
                 GradientPoints::floats(pass, inputs, outputs);
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
