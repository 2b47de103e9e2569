#include "ops/conv/depthwise_planar_cpu.h"

#include <omp.h>

#include <algorithm>
#include <numeric>

#include "ops/conv/depthwise_axes_cpu.h"
#include "ops/conv/depthwise_vectors_cpu.h"

namespace pipetrain {
namespace {

using namespace depthwise_rows;

constexpr std::int64_t kEight = 8;
constexpr std::int64_t kMostVectors = 4;  // of a row, in an inner loop

std::int64_t remainder_of(std::int64_t place, std::int64_t unit) {
  return place - floor_of(place, unit) * unit;
}

/// Rows of a channel in the workspace: columns from `left` on, sorted by their remainders.
struct SortedRows {
  std::int64_t left, stride, phase_width;
  std::int64_t row() const { return stride * phase_width; }
  /// Where a column lies.
  std::int64_t at(std::int64_t column) const {
    const std::int64_t place = column - left;
    return remainder_of(place, stride) * phase_width + floor_of(place, stride);
  }
};

/// Where the next `size` columns of a row begin: the last ones overlap those before, unless the row
/// is shorter, or they would begin in the middle of a pair.
std::int64_t next_part(std::int64_t at, std::int64_t size, std::int64_t width) {
  const std::int64_t next = at + size, last = width - size;
  return next > last && next < width && last >= 0 && last % 2 == 0 ? last : next;
}

/// A row of a channel to where its columns lie; the rest stays as it is.
template <class Element>
void sort_row(const Element* from, std::int64_t width, const SortedRows& rows, float* to) {
  if (rows.stride == 1) {
    float* place = to + rows.at(0);
    std::int64_t i = 0;
    for (; i + kEight <= width; i = next_part(i, kEight, width)) store8(place + i, load8(from + i));
    for (; i < width; ++i) place[i] = to_float(from[i]);
    return;
  }
  std::int64_t first = 0;
  if (rows.stride == 2) {
    float *even = to + rows.at(0), *odd = to + rows.at(1);
    for (; first + 2 * kEight <= width; first = next_part(first, 2 * kEight, width)) {
      const Vector8 low = load8(from + first), high = load8(from + first + kEight);
      store8(even + first / 2, __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14));
      store8(odd + first / 2, __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15));
    }
  }
  for (std::int64_t i = first; i < width; ++i) to[rows.at(i)] = to_float(from[i]);
}

/// Rows [top, top + count) of a channel; zeros where there is nothing.
template <class Element>
void gather_plane(const Element* plane, const WindowAxis& height, std::int64_t width,
                  std::int64_t top, std::int64_t count, const SortedRows& rows, float* to) {
  std::fill_n(to, count * rows.row(), 0.0F);
  const std::int64_t end = std::min(top + count, height.input);
  for (std::int64_t row = std::max<std::int64_t>(top, 0); row < end; ++row)
    sort_row(plane + row * width, width, rows, to + (row - top) * rows.row());
}

/// A row of results: its phases lie `step` floats apart.
template <class Element>
void store_row(const float* from, std::int64_t step, std::int64_t phases, std::int64_t width,
               Element* to) {
  std::int64_t i = 0;
  if (phases == 1) {
    for (; i + kEight <= width; i = next_part(i, kEight, width)) store8(to + i, load8(from + i));
  } else if (phases == 2) {
    for (; i + 2 * kEight <= width; i = next_part(i, 2 * kEight, width)) {
      const Vector8 even = load8(from + i / 2), odd = load8(from + step + i / 2);
      store8(to + i, __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11));
      store8(to + i + kEight, __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15));
    }
  }
  for (; i < width; ++i) {
    Element rounded[kEight];
    store8(rounded, fill8(from[i % phases * step + i / phases]));
    to[i] = rounded[0];
  }
}

DepthwisePlanarPass plan(const Depthwise& shape, bool input_gradient) {
  const std::vector<Place> rows = places_of(shape.rows, input_gradient);
  const std::vector<Place> columns = places_of(shape.columns, input_gradient);
  DepthwisePlanarPass out{shape,
                          input_gradient,
                          axis_of(shape.rows, input_gradient, rows),
                          axis_of(shape.columns, input_gradient, columns),
                          0,
                          0,
                          0,
                          0,
                          {}};
  const std::int64_t stride = out.columns.step;
  out.vectors = whole(out.columns.outputs_of_phase(), lanes());
  out.left = std::min<std::int64_t>(0, out.columns.first);
  const std::int64_t width =
      std::max((out.vectors * lanes() - 1) * stride + out.columns.last + 1, out.columns.inputs) -
      out.left;
  out.phase_width = floats_in_lines(whole(width, stride));
  const SortedRows sorted{out.left, stride, out.phase_width};
  out.band = band_of(out.rows.outputs_of_phase(), source_rows(out.rows, 1) * sorted.row(),
                     out.rows.step * sorted.row());
  out.taps.resize(static_cast<std::size_t>(out.rows.phases * out.columns.phases));
  for (const Place& row : rows) {
    for (const Place& column : columns) {
      out.taps[static_cast<std::size_t>(row.phase * out.columns.phases + column.phase)].push_back(
          {(row.place - out.rows.first) * sorted.row() + sorted.at(column.place),
           row.tap * shape.columns.kernel + column.tap});
    }
  }
  return out;
}

/// Rows of results that an inner loop computes: enough sums to hide the latency of one.
constexpr std::int64_t kMostRows = 4;
std::int64_t rows_together(std::int64_t left, std::int64_t vectors) {
  return left >= 4 && vectors <= 2 ? 4 : left >= 2 ? 2 : 1;
}

std::int64_t source_floats(const DepthwisePlanarPass& pass) {
  return source_rows(pass.rows, pass.band) * pass.columns.step * pass.phase_width;
}
std::int64_t result_floats(const DepthwisePlanarPass& pass) {
  return kMostRows * pass.columns.phases * pass.vectors * lanes();
}
std::int64_t thread_floats(const DepthwisePlanarPass& pass) {
  return source_floats(pass) + result_floats(pass) + floats_in_lines(pass.shape.taps());
}

/// A channel's results for `count` rows of a phase, from row `top` on, of which the first reads at
/// `source`.
template <class Element>
void compute_rows(const DepthwisePlanarPass& pass, std::int64_t row_phase, std::int64_t top,
                  std::int64_t count, const float* source, const float* weights, float start,
                  float* own, Element* plane) {
  const std::int64_t phases = pass.columns.phases, line = pass.vectors * lanes();
  const std::int64_t step = pass.rows.step * pass.columns.step * pass.phase_width;
  const Parts parts(pass.vectors, kMostVectors);
  const std::int64_t widest = parts.size(parts.count - 1);
  for (std::int64_t row = 0; row < count;) {
    const std::int64_t take = rows_together(count - row, widest);
    for (std::int64_t phase = 0; phase < phases; ++phase) {
      const auto& taps = pass.taps[static_cast<std::size_t>(row_phase * phases + phase)];
      for (std::int64_t part = 0; part < parts.count; ++part) {
        const SumPlane sum = has_avx512() ? wide::sum_plane_of(take, parts.size(part))
                                          : narrow::sum_plane_of(take, parts.size(part));
        const std::int64_t column = parts.first(part) * lanes();
        sum(taps, source + row * step + column, step, weights, start, own + phase * line + column,
            phases * line);
      }
    }
    for (std::int64_t r = 0; r < take; ++r, ++row) {
      const std::int64_t place = (top + row) * pass.rows.phases + row_phase;
      store_row(own + r * phases * line, line, phases, pass.columns.outputs,
                plane + place * pass.columns.outputs);
    }
  }
}

template <class Element>
void compute_plane(const DepthwisePlanarPass& pass, const Element* source, const float* weights,
                   float start, float* own, Element* plane) {
  const SortedRows sorted{pass.left, pass.columns.step, pass.phase_width};
  const WindowAxis height{.input = pass.rows.inputs};
  const std::int64_t rows = pass.rows.outputs_of_phase();
  for (std::int64_t top = 0; top < rows; top += pass.band) {
    const std::int64_t count = std::min(pass.band, rows - top);
    gather_plane(source, height, pass.columns.inputs, top * pass.rows.step + pass.rows.first,
                 source_rows(pass.rows, count), sorted, own);
    for (std::int64_t phase = 0; phase < pass.rows.phases; ++phase) {
      // The last rows of a phase may lie beyond the edge.
      const std::int64_t left = whole(pass.rows.outputs - phase, pass.rows.phases) - top;
      compute_rows(pass, phase, top, std::min(count, left), own, weights, start,
                   own + source_floats(pass), plane);
    }
  }
}

/// How the weight gradient lies in the workspace.
struct GradientPlan {
  explicit GradientPlan(const Depthwise& shape)
      : vectors(whole(shape.columns.output, lanes())),
        sorted{std::min<std::int64_t>(0, -shape.columns.pad_begin), shape.columns.stride, 0} {
    const std::int64_t last = (vectors * lanes() - 1) * shape.columns.stride -
                              shape.columns.pad_begin + shape.columns.extent() - 1;
    sorted.phase_width = floats_in_lines(
        whole(std::max(last + 1, shape.columns.input) - sorted.left, sorted.stride));
    band = band_of(shape.rows.output, shape.rows.extent() * sorted.row(),
                   shape.rows.stride * sorted.row() + vectors * lanes());
    x_floats = ((band - 1) * shape.rows.stride + shape.rows.extent()) * sorted.row();
    y_floats = band * vectors * lanes();
    sums = (shape.taps() + 1) * lanes();
  }
  std::int64_t thread_floats() const { return x_floats + y_floats + sums; }

  std::int64_t vectors;  // of a row of dy
  SortedRows sorted;     // x
  std::int64_t band = 0, x_floats = 0, y_floats = 0;
  std::int64_t sums = 0;  // floats: a vector for every tap, then one for the bias
};

/// Adds what a band of dy gives every tap.
void add_band(const Depthwise& shape, const GradientPlan& plan, std::int64_t count, const float* x,
              const float* dy, float* sums) {
  const WindowAxis &rows = shape.rows, &columns = shape.columns;
  const bool is_wide = has_avx512();
  // Taps of a row whose columns have one remainder are `between` places of it apart.
  const std::int64_t common = std::gcd(columns.stride, columns.dilation);
  const std::int64_t groups = std::min(columns.stride / common, columns.kernel);
  const std::int64_t between = columns.dilation / common;
  const GradientBand band{count,
                          plan.vectors,
                          rows.stride * plan.sorted.row(),
                          lanes(),
                          plan.vectors * lanes(),
                          rows.dilation * plan.sorted.row(),
                          between,
                          columns.stride / common,
                          columns.kernel};
  for (std::int64_t group = 0; group < groups; ++group) {
    const Parts parts(whole(columns.kernel - group, band.sum_step), 8);
    const std::int64_t widest = parts.size(parts.count - 1);
    const Parts heights(rows.kernel, std::clamp<std::int64_t>((is_wide ? 28 : 14) / widest, 1, 3));
    for (std::int64_t i = 0; i < heights.count; ++i) {
      for (std::int64_t j = 0; j < parts.count; ++j) {
        const std::int64_t height = heights.size(i), width = parts.size(j);
        const std::int64_t tap = group + parts.first(j) * band.sum_step;
        const AddGradient add = is_wide ? between == 1 ? wide::add_gradient_of<1>(height, width)
                                                       : wide::add_gradient_of<0>(height, width)
                                : between == 1 ? narrow::add_gradient_of<1>(height, width)
                                               : narrow::add_gradient_of<0>(height, width);
        add(band,
            x + heights.first(i) * band.tap_row +
                plan.sorted.at(tap * columns.dilation - columns.pad_begin),
            dy, sums + (heights.first(i) * columns.kernel + tap) * lanes());
      }
    }
  }
}

/// The sums of a channel over all samples.
template <class Element>
void sum_channel(const Depthwise& shape, const GradientPlan& plan, const Element* x,
                 const Element* dy, std::int64_t channel, float* own, float* sums) {
  const WindowAxis height{.input = shape.rows.output};
  const SortedRows plain{0, 1, plan.vectors * lanes()};
  const std::int64_t x_plane = shape.rows.input * shape.columns.input;
  const std::int64_t y_plane = shape.rows.output * shape.columns.output;
  float* gradient = own + plan.x_floats;
  std::fill_n(sums, plan.sums, 0.0F);
  for (std::int64_t n = 0; n < shape.batch; ++n) {
    const std::int64_t plane = n * shape.channels + channel;
    for (std::int64_t row = 0; row < shape.rows.output; row += plan.band) {
      const std::int64_t count = std::min(plan.band, shape.rows.output - row);
      gather_plane(x + plane * x_plane, shape.rows, shape.columns.input, shape.rows.start(row),
                   (count - 1) * shape.rows.stride + shape.rows.extent(), plan.sorted, own);
      gather_plane(dy + plane * y_plane, height, shape.columns.output, row, count, plain, gradient);
      add_band(shape, plan, count, own, gradient, sums);
      (has_avx512() ? wide::add_vectors : narrow::add_vectors)(gradient, count * plan.vectors,
                                                               sums + shape.taps() * lanes());
    }
  }
}

}  // namespace

bool depthwise_rows_are_long(const Depthwise& shape) {
  return shape.x_lanes == 1 && shape.y_lanes == 1 && shape.columns.input >= 2 * lanes();
}

DepthwisePlanarPass depthwise_planar_forward(const Depthwise& shape) {
  return plan(shape, /*input_gradient=*/false);
}
DepthwisePlanarPass depthwise_planar_input_gradient(const Depthwise& shape) {
  return plan(shape, /*input_gradient=*/true);
}

std::size_t depthwise_planar_workspace_bytes(const DepthwisePlanarPass& pass, int threads) {
  return static_cast<std::size_t>(threads * thread_floats(pass)) * sizeof(float);
}

template <class Element>
void depthwise_planar_run(const DepthwisePlanarPass& pass, const Element* from, const Element* w,
                          const float* bias, Element* to, std::byte* workspace, int threads) {
  const std::int64_t channels = pass.shape.channels, taps = pass.shape.taps();
  const std::int64_t planes = pass.shape.batch * channels;
  const std::int64_t source = pass.rows.inputs * pass.columns.inputs;
  const std::int64_t result = pass.rows.outputs * pass.columns.outputs;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    const std::int64_t channel = plane % channels;
    float* own = reinterpret_cast<float*>(workspace) + omp_get_thread_num() * thread_floats(pass);
    float* weights = own + source_floats(pass) + result_floats(pass);
    for (std::int64_t tap = 0; tap < taps; ++tap) weights[tap] = to_float(w[channel * taps + tap]);
    compute_plane(pass, from + plane * source, weights, bias ? bias[channel] : 0.0F, own,
                  to + plane * result);
  }
}

std::size_t depthwise_planar_weight_gradient_workspace_bytes(const Depthwise& shape, int threads) {
  return static_cast<std::size_t>(threads * GradientPlan(shape).thread_floats()) * sizeof(float);
}

template <class Element>
void depthwise_planar_weight_gradient(const Depthwise& shape, const Element* x, const Element* dy,
                                      bool add, float* dw, float* dbias, std::byte* workspace,
                                      int threads) {
  const GradientPlan plan(shape);
  const std::int64_t taps = shape.taps();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t channel = 0; channel < shape.channels; ++channel) {
    float* own = reinterpret_cast<float*>(workspace) + omp_get_thread_num() * plan.thread_floats();
    float* sums = own + plan.x_floats + plan.y_floats;
    sum_channel(shape, plan, x, dy, channel, own, sums);
    for (std::int64_t tap = 0; tap <= taps; ++tap) {
      if (tap == taps && !dbias) continue;
      float* to = tap < taps ? dw + channel * taps + tap : dbias + channel;
      float sum = 0;
      for (std::int64_t lane = 0; lane < lanes(); ++lane) sum += sums[tap * lanes() + lane];
      *to = add ? *to + sum : sum;
    }
  }
}

#define PIPETRAIN_PLANAR_OF(Element)                                                               \
  template void depthwise_planar_run(const DepthwisePlanarPass&, const Element*, const Element*,   \
                                     const float*, Element*, std::byte*, int);                     \
  template void depthwise_planar_weight_gradient(const Depthwise&, const Element*, const Element*, \
                                                 bool, float*, float*, std::byte*, int)
PIPETRAIN_PLANAR_OF(float);
PIPETRAIN_PLANAR_OF(BFloat16);
#undef PIPETRAIN_PLANAR_OF

}  // namespace pipetrain
