#include "ops/conv/depthwise_cpu.h"

#include <omp.h>

#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "ops/conv/depthwise_rows_cpu.h"
#include "ops/conv/depthwise_vectors_cpu.h"

namespace pipetrain {
namespace {

using namespace depthwise_rows;

/// Outputs of an inner loop that leave the fewest beyond the edge.
std::int64_t together_of(std::int64_t outputs) {
  std::int64_t best = 8;
  for (std::int64_t count = 7; count >= 4; --count) {
    if (whole(outputs, count) * count < whole(outputs, best) * best) best = count;
  }
  return best;
}

/// Whether rows of taps slide over what they read.
bool slides(const Depthwise& shape) {
  const WindowAxis &rows = shape.rows, &columns = shape.columns;
  const bool plain = rows.stride == 1 && columns.stride == 1 && columns.dilation == 1;
  return plain && narrow::slide_rows_of(columns.kernel, 4) != nullptr;
}

DepthwisePass plan(const Depthwise& shape, bool input_gradient) {
  const std::vector<Place> rows = places_of(shape.rows, input_gradient);
  const std::vector<Place> columns = places_of(shape.columns, input_gradient);
  DepthwisePass out{shape,
                    input_gradient,
                    axis_of(shape.rows, input_gradient, rows),
                    axis_of(shape.columns, input_gradient, columns),
                    0,
                    0,
                    0,
                    0,
                    0,
                    {},
                    {}};
  out.together = together_of(out.columns.outputs_of_phase());
  out.tiled = whole(out.columns.outputs_of_phase(), out.together) * out.together;
  out.left = std::min<std::int64_t>(0, out.columns.first);
  out.width =
      std::max((out.tiled - 1) * out.columns.step + out.columns.last + 1, out.columns.inputs) -
      out.left;
  const std::int64_t row_floats = out.width * lanes();
  out.band = band_of(out.rows.outputs_of_phase(), source_rows(out.rows, 1) * row_floats,
                     out.rows.step * row_floats);
  out.taps.resize(static_cast<std::size_t>(out.rows.phases * out.columns.phases));
  for (const Place& row : rows) {
    for (const Place& column : columns) {
      out.taps[static_cast<std::size_t>(row.phase * out.columns.phases + column.phase)].push_back(
          {(row.place - out.rows.first) * out.width + column.place - out.left,
           row.tap * shape.columns.kernel + column.tap});
      if (slides(shape) && column.place == out.columns.first)
        out.row_taps.push_back(out.taps.back().back());
    }
  }
  return out;
}

std::int64_t groups_of(const Depthwise& shape) { return whole(shape.channels, lanes()); }

/// Floats of a thread's part of the workspace: a band of the source, and a row of results.
std::int64_t source_floats(const DepthwisePass& pass) {
  return source_rows(pass.rows, pass.band) * pass.width * lanes();
}
std::int64_t thread_floats(const DepthwisePass& pass) {
  return source_floats(pass) + pass.tiled * pass.columns.phases * lanes();
}
/// Of the weights and the bias, which all threads read.
std::int64_t weight_floats(const Depthwise& shape) {
  return groups_of(shape) * (shape.taps() + 1) * lanes();
}

/// The weights of a group of channels, (taps, lanes), and its bias behind them.
template <class Element>
void gather_weights(const Depthwise& shape, const Element* w, const float* bias, std::int64_t group,
                    float* to) {
  const std::int64_t taps = shape.taps(), step = lanes(), first = group * step;
  const std::int64_t present = std::min(step, shape.channels - first);
  std::fill_n(to, (taps + 1) * step, 0.0F);
  for (std::int64_t lane = 0; lane < present; ++lane) {
    for (std::int64_t tap = 0; tap < taps; ++tap)
      to[tap * step + lane] = to_float(w[(first + lane) * taps + tap]);
    if (bias) to[taps * step + lane] = bias[first + lane];
  }
}

/// One row of results.
template <class Element>
void compute_row(const DepthwisePass& pass, const FeatureMap<Element>& map, std::int64_t n,
                 std::int64_t channel, std::int64_t row, const float* source, const float* weights,
                 float* own) {
  const std::int64_t step = lanes(), phases = pass.columns.phases;
  const SumTaps sum = has_avx512() ? wide::sum_taps_of(pass.together, pass.columns.step)
                                   : narrow::sum_taps_of(pass.together, pass.columns.step);
  float* to = own;
  if constexpr (std::is_same_v<Element, float>) {
    const bool direct = map.lanes == step && pass.tiled * phases == map.width;
    if (direct) to = map.data + map.at(n, channel) + row * map.width * step;
  }
  if (!pass.row_taps.empty()) {
    const std::int64_t taps = pass.shape.columns.kernel;
    const SlideRows slide = has_avx512() ? wide::slide_rows_of(taps, pass.together)
                                         : narrow::slide_rows_of(taps, pass.together);
    for (std::int64_t i = 0; i < pass.tiled; i += pass.together) {
      slide(pass.row_taps, source + i * step, pass.input_gradient ? -1 : 1, weights,
            weights + pass.shape.taps() * step, to + i * step);
    }
    if (to == own) scatter_row(map, n, channel, row, step, own);
    return;
  }
  for (std::int64_t phase = 0; phase < phases; ++phase) {
    const auto& taps = pass.taps[static_cast<std::size_t>(row % pass.rows.phases * phases + phase)];
    for (std::int64_t i = 0; i < pass.tiled; i += pass.together) {
      sum(taps, source + i * pass.columns.step * step, pass.columns.step, weights,
          weights + pass.shape.taps() * step, to + (phase + i * phases) * step, phases);
    }
  }
  if (to == own) scatter_row(map, n, channel, row, step, own);
}

/// The sums of a group of channels over some samples: (taps, lanes), then (lanes) for the bias.
struct GradientPlan {
  explicit GradientPlan(const Depthwise& shape)
      : samples(whole(shape.batch, std::min<std::int64_t>(shape.batch, 16))),
        chunks(whole(shape.batch, samples)),
        left(std::min<std::int64_t>(0, -shape.columns.pad_begin)),
        width(std::max(shape.columns.start(shape.columns.output - 1) + shape.columns.extent(),
                       shape.columns.input) -
              left),
        sums((shape.taps() + 1) * lanes()),
        band(band_of(shape.rows.output, shape.rows.extent() * width * lanes(),
                     (shape.rows.stride * width + shape.columns.output) * lanes())),
        x_floats(((band - 1) * shape.rows.stride + shape.rows.extent()) * width * lanes()),
        y_floats(band * shape.columns.output * lanes()) {}
  std::int64_t samples, chunks;  // of the batch: the same for any number of threads
  std::int64_t left, width;      // columns of x in the workspace
  std::int64_t sums;             // floats
  std::int64_t band;             // rows of dy
  std::int64_t x_floats, y_floats;
};

/// Adds what a band of dy, `band.rows` rows from the first output on, gives every tap.
void add_band(const Depthwise& shape, const GradientBand& band, const float* x, const float* dy,
              float* sums) {
  const bool is_wide = has_avx512(), dense = shape.columns.dilation == 1;
  const Parts columns(shape.columns.kernel, 8);
  // As many sums as there are registers for.
  const std::int64_t widest = columns.size(columns.count - 1);
  const Parts rows(shape.rows.kernel, std::clamp<std::int64_t>((is_wide ? 28 : 14) / widest, 1, 3));
  for (std::int64_t i = 0; i < rows.count; ++i) {
    for (std::int64_t j = 0; j < columns.count; ++j) {
      const std::int64_t row = rows.first(i), column = columns.first(j);
      const std::int64_t height = rows.size(i), width = columns.size(j);
      const AddGradient add = is_wide ? dense ? wide::add_gradient_of<wide::kLanes>(height, width)
                                              : wide::add_gradient_of<0>(height, width)
                              : dense ? narrow::add_gradient_of<narrow::kLanes>(height, width)
                                      : narrow::add_gradient_of<0>(height, width);
      add(band, x + row * band.tap_row + column * band.tap_step, dy,
          sums + (row * shape.columns.kernel + column) * lanes());
    }
  }
}

/// The sums of a group of channels over samples [begin, end).
template <class Element>
void sum_samples(const Depthwise& shape, const GradientPlan& plan,
                 const FeatureMap<const Element>& x, const FeatureMap<const Element>& dy,
                 std::int64_t channel, std::int64_t begin, std::int64_t end, float* own,
                 float* sums) {
  const std::int64_t step = lanes(), y_row = dy.width * step;
  GradientBand band{0,
                    dy.width,
                    shape.rows.stride * plan.width * step,
                    shape.columns.stride * step,
                    y_row,
                    shape.rows.dilation * plan.width * step,
                    shape.columns.dilation * step,
                    1,
                    shape.columns.kernel};
  std::fill_n(sums, plan.sums, 0.0F);
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t row = 0; row < dy.height; row += plan.band) {
      band.rows = std::min(plan.band, dy.height - row);
      gather(x, n, channel,
             {shape.rows.start(row), (band.rows - 1) * shape.rows.stride + shape.rows.extent(),
              plan.left, plan.width},
             step, own);
      const float* gradient = own + plan.x_floats;
      bool is_there = false;
      if constexpr (std::is_same_v<Element, float>) {
        is_there = dy.lanes == step;
        if (is_there) gradient = dy.data + dy.at(n, channel) + row * y_row;
      }
      if (!is_there)
        gather(dy, n, channel, {row, band.rows, 0, dy.width}, step, own + plan.x_floats);
      add_band(shape, band, own - (shape.columns.pad_begin + plan.left) * step, gradient, sums);
      (has_avx512() ? wide::add_vectors : narrow::add_vectors)(gradient, band.rows * dy.width,
                                                               sums + shape.taps() * step);
    }
  }
}

}  // namespace

std::optional<Depthwise> depthwise(const ConvGeometry& geometry, Layout x, Layout y) {
  const std::size_t axes = geometry.window.size();
  if (geometry.group < 2 || geometry.inputs != 1 || geometry.outputs != 1 || axes > 2) return {};
  const auto lanes_of = [](Layout layout) -> std::int64_t {
    return layout == Layout::kBlocked16  ? 16
           : layout == Layout::kBlocked8 ? 8
           : layout == Layout::kRowMajor ? 1
                                         : 0;
  };
  if (lanes_of(x) == 0 || lanes_of(y) == 0) return {};
  const WindowAxis rows = axes == 2 ? geometry.window[0] : WindowAxis{};
  return Depthwise{geometry.batch, geometry.group, rows, geometry.window[axes - 1],
                   lanes_of(x),    lanes_of(y)};
}

DepthwisePass depthwise_forward(const Depthwise& shape) {
  return plan(shape, /*input_gradient=*/false);
}
DepthwisePass depthwise_input_gradient(const Depthwise& shape) {
  return plan(shape, /*input_gradient=*/true);
}

std::size_t depthwise_workspace_bytes(const DepthwisePass& pass, int threads) {
  return static_cast<std::size_t>(floats_in_lines(weight_floats(pass.shape)) +
                                  threads * floats_in_lines(thread_floats(pass))) *
         sizeof(float);
}

template <class Element>
void depthwise_run(const DepthwisePass& pass, const Element* from, const Element* w,
                   const float* bias, Element* to, std::byte* workspace, int threads) {
  const Depthwise& shape = pass.shape;
  const std::int64_t x_lanes = pass.input_gradient ? shape.y_lanes : shape.x_lanes;
  const std::int64_t y_lanes = pass.input_gradient ? shape.x_lanes : shape.y_lanes;
  const FeatureMap<const Element> source{
      from, shape.batch, shape.channels, pass.rows.inputs, pass.columns.inputs, x_lanes};
  const FeatureMap<Element> result{
      to, shape.batch, shape.channels, pass.rows.outputs, pass.columns.outputs, y_lanes};
  const std::int64_t groups = groups_of(shape), step = lanes();
  const std::int64_t group_floats = (shape.taps() + 1) * step;
  auto* weights = reinterpret_cast<float*>(workspace);
  float* rest = weights + floats_in_lines(weight_floats(shape));
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (std::int64_t group = 0; group < groups; ++group)
      gather_weights(shape, w, bias, group, weights + group * group_floats);
    float* own = rest + omp_get_thread_num() * floats_in_lines(thread_floats(pass));
#pragma omp for schedule(static)
    for (std::int64_t item = 0; item < shape.batch * groups; ++item) {
      const std::int64_t n = item / groups, group = item % groups;
      const std::int64_t rows = pass.rows.outputs_of_phase();
      for (std::int64_t top = 0; top < rows; top += pass.band) {
        const std::int64_t count = std::min(pass.band, rows - top);
        gather(source, n, group * step,
               {top * pass.rows.step + pass.rows.first, source_rows(pass.rows, count), pass.left,
                pass.width},
               step, own);
        const std::int64_t end = std::min((top + count) * pass.rows.phases, pass.rows.outputs);
        for (std::int64_t row = top * pass.rows.phases; row < end; ++row) {
          const std::int64_t first = (row / pass.rows.phases - top) * pass.rows.step;
          compute_row(pass, result, n, group * step, row, own + first * pass.width * step,
                      weights + group * group_floats, own + source_floats(pass));
        }
      }
    }
  }
}

std::size_t depthwise_weight_gradient_workspace_bytes(const Depthwise& shape, int threads) {
  const GradientPlan plan(shape);
  return static_cast<std::size_t>(plan.chunks * groups_of(shape) * plan.sums +
                                  threads * (plan.x_floats + plan.y_floats)) *
         sizeof(float);
}

template <class Element>
void depthwise_weight_gradient(const Depthwise& shape, const Element* x, const Element* dy,
                               bool add, float* dw, float* dbias, std::byte* workspace,
                               int threads) {
  const GradientPlan plan(shape);
  const FeatureMap<const Element> from{
      x, shape.batch, shape.channels, shape.rows.input, shape.columns.input, shape.x_lanes};
  const FeatureMap<const Element> gradient{
      dy, shape.batch, shape.channels, shape.rows.output, shape.columns.output, shape.y_lanes};
  const std::int64_t groups = groups_of(shape), step = lanes(), taps = shape.taps();
  auto* sums = reinterpret_cast<float*>(workspace);
  float* rest = sums + plan.chunks * groups * plan.sums;
#pragma omp parallel num_threads(threads)
  {
    float* own = rest + omp_get_thread_num() * (plan.x_floats + plan.y_floats);
#pragma omp for schedule(static)
    for (std::int64_t item = 0; item < plan.chunks * groups; ++item) {
      const std::int64_t begin = item / groups * plan.samples, group = item % groups;
      sum_samples(shape, plan, from, gradient, group * step, begin,
                  std::min(begin + plan.samples, shape.batch), own, sums + item * plan.sums);
    }
#pragma omp for schedule(static)
    for (std::int64_t channel = 0; channel < shape.channels; ++channel) {
      const float* first = sums + channel / step * plan.sums + channel % step;
      for (std::int64_t tap = 0; tap <= taps; ++tap) {
        float* to = tap < taps ? dw + channel * taps + tap : dbias + channel;
        if (tap == taps && !dbias) continue;
        float sum = 0;
        for (std::int64_t chunk = 0; chunk < plan.chunks; ++chunk)
          sum += first[chunk * groups * plan.sums + tap * step];
        *to = add ? *to + sum : sum;
      }
    }
  }
}

#define PIPETRAIN_DEPTHWISE_OF(Element)                                                           \
  template void depthwise_run(const DepthwisePass&, const Element*, const Element*, const float*, \
                              Element*, std::byte*, int);                                         \
  template void depthwise_weight_gradient(const Depthwise&, const Element*, const Element*, bool, \
                                          float*, float*, std::byte*, int)
PIPETRAIN_DEPTHWISE_OF(float);
PIPETRAIN_DEPTHWISE_OF(BFloat16);
#undef PIPETRAIN_DEPTHWISE_OF

}  // namespace pipetrain
