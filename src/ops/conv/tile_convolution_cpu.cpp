#include "ops/conv/tile_convolution_cpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/conv/padded_gradient_cpu.h"
#include "ops/conv/padded_pass_cpu.h"
#include "ops/conv/tile_windows_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/tile_worker_cpu.h"

namespace pipetrain {
namespace {

using tiles::kSide;
using Bits = std::uint16_t;  // of a bfloat16

/// The positions of an axis of x that the same taps reach, and the windows of stride 1 that these
/// taps make of them: `axis.input` positions, each `step`-th from `begin` on.
struct Phase {
  WindowAxis axis;
  std::int64_t begin = 0, step = 1;
  std::int64_t first_tap = 0, tap_step = 1;
};

/// All positions of the axis; those that no tap reaches have no taps.
std::vector<Phase> phases_of(const WindowAxis& axis) {
  std::vector<Phase> out;
  for (std::int64_t begin = 0; begin < std::min(axis.stride, axis.input); ++begin) {
    Phase phase;
    phase.begin = begin;
    phase.step = axis.stride;
    phase.axis = {.input = (axis.input - begin + axis.stride - 1) / axis.stride,
                  .kernel = 0,
                  .output = axis.output};
    for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
      const std::int64_t offset = begin + axis.pad_begin - tap * axis.dilation;
      if (offset % axis.stride != 0) continue;
      if (phase.axis.kernel == 0) {
        phase.first_tap = tap;
        phase.axis.pad_begin = offset / axis.stride;
      } else if (phase.axis.kernel == 1) {
        phase.tap_step = tap - phase.first_tap;
        phase.axis.dilation = phase.axis.pad_begin - offset / axis.stride;
      }
      ++phase.axis.kernel;
    }
    out.push_back(phase);
  }
  return out;
}

/// Sums go to a map in blocks of 16 channels: to all of its positions, or to those of two phases.
struct BlockedRows {
  Bits* map;
  std::int64_t channels, positions;
  const float* bias;
  std::int64_t width = 0;  // of the map
  Phase rows = {}, columns = {};

  void store(const tiles::Instructions& instructions, const float* sums, std::int64_t row,
             std::int64_t rows_of_sums, std::int64_t column, std::int64_t columns_of_sums) const {
    const bool whole = rows.step == 1 && columns.step == 1;
    const std::int64_t across = whole ? positions : columns.axis.input;
    const std::int64_t per_sample = whole ? positions : across * rows.axis.input;
    for (std::int64_t done = 0; done < rows_of_sums;) {
      const std::int64_t sample = (row + done) / per_sample, window = (row + done) % per_sample;
      const std::int64_t first = window % across;
      const std::int64_t position = whole ? first
                                          : (rows.begin + window / across * rows.step) * width +
                                                columns.begin + first * columns.step;
      const std::int64_t count = std::min(rows_of_sums - done, across - first);
      for (std::int64_t c = column; c < column + columns_of_sums; c += kSide) {
        instructions.store_rounded(
            sums + done * tiles::kBlock + c - column, count, kSide, bias ? bias + c : nullptr,
            map + (sample * channels + c) * positions + position * kSide, columns.step * kSide);
      }
      done += count;
    }
  }
};

constexpr std::int64_t kAlignment = 64;

std::size_t aligned(std::int64_t bytes) {
  return static_cast<std::size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
}

std::size_t weight_bytes(const TileConvolution& shape, std::size_t element) {
  return aligned(shape.outputs * shape.inputs * shape.taps() * static_cast<std::int64_t>(element));
}

std::int64_t positions_of_x(const TileConvolution& shape) {
  return shape.rows.input * shape.columns.input;
}
std::int64_t positions_of_y(const TileConvolution& shape) {
  return shape.rows.output * shape.columns.output;
}

/// Of a forward pass, or of those positions of x that two phases have.
GemmShape pass_shape(const TileConvolution& shape) {
  return {shape.batch * positions_of_y(shape), shape.outputs, shape.inputs * shape.taps()};
}
GemmShape pass_shape(const TileConvolution& shape, const Phase& rows, const Phase& columns) {
  return {shape.batch * rows.axis.input * columns.axis.input, shape.inputs,
          shape.outputs * rows.axis.kernel * columns.axis.kernel};
}

GemmShape gradient_shape(const TileConvolution& shape) {
  return {shape.outputs, shape.inputs * shape.taps(), shape.batch * positions_of_y(shape)};
}

/// Puts weights of several taps in order in front of the workspace; returns what to read.
const Bits* ordered_weights(const TileConvolution& shape, bool input_gradient,
                            const std::vector<std::int64_t>& order, const Bits* w,
                            std::byte*& workspace, int threads) {
  if (shape.taps() == 1) return w;
  auto* const ordered = reinterpret_cast<Bits*>(workspace);
  order_weights(shape, input_gradient, order, w, ordered, threads);
  workspace += weight_bytes(shape, sizeof(Bits));
  return ordered;
}

void forward(const TileConvolution& shape, const tiles::Instructions& instructions,
             const std::vector<std::int64_t>& order, const Bits* x, const Bits* w,
             const float* bias, Bits* y, std::byte* workspace, int threads) {
  w = ordered_weights(shape, /*input_gradient=*/false, order, w, workspace, threads);
  const GemmShape product = pass_shape(shape);
  const Windows windows{instructions,        x,          shape.inputs,  positions_of_x(shape),
                        shape.columns.input, shape.rows, shape.columns, /*transposed=*/false};
  tiles::run(instructions,
             tiles::Operation{product, windows, tiles::Lines<Bits>{w, product.k, 1},
                              static_cast<const Bits*>(nullptr),
                              BlockedRows{y, product.n, positions_of_y(shape), bias}},
             workspace, threads);
}

/// The phases of both axes of x, and the taps of their pairs in turn.
struct Phases {
  explicit Phases(const TileConvolution& shape)
      : down(phases_of(shape.rows)), across(phases_of(shape.columns)) {
    for (const Phase& rows : down) {
      for (const Phase& columns : across) {
        const std::int64_t taps = rows.axis.kernel * columns.axis.kernel;
        reaches_all = reaches_all && taps > 0;
        for (std::int64_t t = 0; t < taps; ++t) {
          const std::int64_t row = rows.first_tap + t / columns.axis.kernel * rows.tap_step;
          const std::int64_t column =
              columns.first_tap + t % columns.axis.kernel * columns.tap_step;
          order.push_back(row * shape.columns.kernel + column);
        }
      }
    }
  }

  std::vector<Phase> down, across;
  std::vector<std::int64_t> order;
  bool reaches_all = true;
};

/// A product for each pair of phases, so that none multiplies by zeros between the outputs.
void input_gradient(const TileConvolution& shape, const tiles::Instructions& instructions,
                    const Phases& phases, const Bits* dy, const Bits* w, Bits* dx,
                    std::byte* workspace, int threads) {
  if (!phases.reaches_all) {
    const std::int64_t maps = shape.batch * shape.inputs, size = positions_of_x(shape);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t map = 0; map < maps; ++map) std::fill_n(dx + map * size, size, Bits{0});
  }
  w = ordered_weights(shape, /*input_gradient=*/true, phases.order, w, workspace, threads);
  for (const Phase& rows : phases.down) {
    for (const Phase& columns : phases.across) {
      const GemmShape product = pass_shape(shape, rows, columns);
      if (product.k == 0) continue;
      const Windows windows{instructions,         dy,        shape.outputs, positions_of_y(shape),
                            shape.columns.output, rows.axis, columns.axis,  /*transposed=*/true};
      tiles::run(instructions,
                 tiles::Operation{product, windows, tiles::Lines<Bits>{w, 1, shape.inputs},
                                  static_cast<const Bits*>(nullptr),
                                  BlockedRows{dx, shape.inputs, positions_of_x(shape), nullptr,
                                              shape.columns.input, rows, columns}},
                 workspace, threads);
      w += product.k * shape.inputs;
    }
  }
}

void weight_gradient(const TileConvolution& shape, const tiles::Instructions& instructions,
                     const Bits* x, const Bits* dy, bool add, float* dw, std::byte* workspace,
                     int threads) {
  const GemmShape product = gradient_shape(shape);
  const bool direct = shape.taps() == 1;
  // (outputs, taps, inputs)
  float* const sums = direct ? dw : reinterpret_cast<float*>(workspace);
  if (!direct) workspace += weight_bytes(shape, sizeof(float));
  const Channels gradients{instructions, dy, shape.outputs, positions_of_y(shape)};
  const Windows windows{instructions,        x,          shape.inputs,  positions_of_x(shape),
                        shape.columns.input, shape.rows, shape.columns, /*transposed=*/false};
  tiles::run(instructions,
             tiles::Operation{product, gradients, windows, static_cast<const Bits*>(nullptr),
                              tiles::Rows<float>{sums, product.n, nullptr, direct && add}},
             workspace, threads);
  if (!direct) store_in_order(shape, sums, add, dw, threads);
}

}  // namespace

std::optional<TileConvolution> tile_convolution(const ConvGeometry& geometry) {
  if (geometry.group != 1 || geometry.window.size() != 2) return {};
  if (geometry.inputs % kSide != 0 || geometry.outputs % kSide != 0) return {};
  return TileConvolution{geometry.batch, geometry.inputs, geometry.outputs, geometry.window[0],
                         geometry.window[1]};
}

void order_weights(const TileConvolution& shape, bool input_gradient,
                   const std::vector<std::int64_t>& order, const Bits* w, Bits* to, int threads) {
  const std::int64_t inputs = shape.inputs, taps = shape.taps(), outputs = shape.outputs;
  const std::int64_t row = input_gradient ? inputs : taps * inputs;
  const std::int64_t tap = input_gradient ? outputs * inputs : inputs;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t o = 0; o < outputs; ++o) {
    const Bits* from = w + o * inputs * taps;
    for (std::size_t t = 0; t < order.size(); ++t) {
      Bits* line = to + o * row + static_cast<std::int64_t>(t) * tap;
      const Bits* numbers = from + order[t];
      for (std::int64_t i = 0; i < inputs; ++i) line[i] = numbers[i * taps];
    }
  }
}

void store_in_order(const TileConvolution& shape, const float* gradients, bool add, float* dw,
                    int threads) {
  const std::int64_t inputs = shape.inputs, taps = shape.taps();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t o = 0; o < shape.outputs; ++o) {
    const float* from = gradients + o * taps * inputs;
    float* to = dw + o * inputs * taps;
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t t = 0; t < taps; ++t, ++to)
        *to = add ? *to + from[t * inputs + i] : from[t * inputs + i];
    }
  }
}

std::unique_ptr<Kernel> make_tile_pass(const TileConvolution& shape, bool input_gradient,
                                       const tiles::Instructions& instructions) {
  if (padded_pass_pays(shape, input_gradient))
    return make_padded_pass(shape, input_gradient, instructions);
  const int threads = omp_get_max_threads();
  const std::size_t ordered = shape.taps() > 1 ? weight_bytes(shape, sizeof(Bits)) : 0;
  if (!input_gradient) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(shape.taps()));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    return make_kernel(
        [=, &instructions](std::span<const Tensor> in, std::span<const Tensor> out,
                           const RunContext& context) {
          forward(shape, instructions, order, in[0].as<Bits>(), in[1].as<Bits>(),
                  data_or_null<float>(in, 2), out[0].as<Bits>(), context.workspace, threads);
        },
        ordered + tiles::run_workspace_bytes(pass_shape(shape), threads));
  }
  const Phases phases(shape);
  std::size_t most = 0;
  for (const Phase& rows : phases.down) {
    for (const Phase& columns : phases.across) {
      const GemmShape product = pass_shape(shape, rows, columns);
      if (product.k > 0) most = std::max(most, tiles::run_workspace_bytes(product, threads));
    }
  }
  return make_kernel(
      [=, &instructions](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext& context) {
        pipetrain::input_gradient(shape, instructions, phases, in[0].as<Bits>(), in[1].as<Bits>(),
                                  out[0].as<Bits>(), context.workspace, threads);
      },
      ordered + most);
}

std::unique_ptr<Kernel> make_tile_weight_gradient(const TileConvolution& shape,
                                                  const tiles::Instructions& instructions) {
  if (padded_gradient_pays(shape)) return make_padded_gradient(shape, instructions);
  const int threads = omp_get_max_threads();
  const std::size_t bytes = (shape.taps() > 1 ? weight_bytes(shape, sizeof(float)) : 0) +
                            tiles::run_workspace_bytes(gradient_shape(shape), threads);
  return make_adding_kernel(
      [=, &instructions](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext& context, bool add) {
        weight_gradient(shape, instructions, in[0].as<Bits>(), in[1].as<Bits>(), add,
                        out[0].as<float>(), context.workspace, threads);
      },
      bytes);
}

}  // namespace pipetrain
