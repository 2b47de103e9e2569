#include "ops/conv/tile_convolution_cpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/tile_worker_cpu.h"

namespace pipetrain {
namespace {

using tiles::kSide;
using tiles::kStep;
using tiles::kTile;
using tiles::Order;
using Bits = std::uint16_t;  // of a bfloat16

/// The numbers that the taps of windows read from a map in blocks of 16 channels, as a matrix: a
/// row for each window of all samples, a column for each channel of each tap. Of a forward pass the
/// windows stand at the positions of y and read x; of an input gradient they stand at those of x
/// and read dy, where a tap reads the one output that it contributes to, and have stride 1.
struct Windows {
  const Bits* map;
  std::int64_t channels, positions, width;  // of the map
  WindowAxis rows, columns;
  bool transposed;

  std::int64_t across() const { return transposed ? columns.input : columns.output; }
  std::int64_t down() const { return transposed ? rows.input : rows.output; }
  std::int64_t per_sample() const { return across() * down(); }

  /// Where a tap of a window reads along an axis, or -1 outside.
  std::int64_t place(const WindowAxis& axis, std::int64_t window, std::int64_t tap) const {
    if (!transposed) {
      const std::int64_t at = axis.start(window) + tap * axis.dilation;
      return at >= 0 && at < axis.input ? at : -1;
    }
    const std::int64_t at = window + axis.pad_begin - tap * axis.dilation;
    return at >= 0 && at < axis.output ? at : -1;
  }

  template <Order kOrder>
  void pack(std::int64_t first, std::int64_t lines, std::int64_t begin, std::int64_t depth,
            Bits* to) const;
};

/// Goes from window to window.
class WindowWalk {
 public:
  WindowWalk(const Windows& windows, std::int64_t window)
      : windows_(windows),
        sample_(windows.map + window / windows.per_sample() * windows.channels * windows.positions),
        row_(window % windows.per_sample() / windows.across()),
        column_(window % windows.across()) {}

  /// The first 16 channels that a tap reads, null outside; blocks of channels are positions * 16
  /// apart.
  const Bits* at(std::int64_t tap_row, std::int64_t tap_column) const {
    const std::int64_t row = windows_.place(windows_.rows, row_, tap_row);
    const std::int64_t column = windows_.place(windows_.columns, column_, tap_column);
    return row < 0 || column < 0 ? nullptr : sample_ + (row * windows_.width + column) * kSide;
  }
  void next() {
    if (++column_ < windows_.across()) return;
    column_ = 0;
    if (++row_ < windows_.down()) return;
    row_ = 0;
    sample_ += windows_.channels * windows_.positions;
  }

 private:
  const Windows& windows_;
  const Bits* sample_;
  std::int64_t row_, column_;
};

/// Blocks of 16 channels in the order of the columns: tap after tap.
class Blocks {
 public:
  Blocks(const Windows& windows, std::int64_t column)
      : per_tap_(windows.channels / kSide),
        tap_(column / windows.channels),
        block_(column % windows.channels / kSide) {}
  std::int64_t tap() const { return tap_; }
  std::int64_t block() const { return block_; }
  void next() {
    if (++block_ < per_tap_) return;
    block_ = 0;
    ++tap_;
  }

 private:
  std::int64_t per_tap_, tap_, block_;
};

constexpr std::int64_t kBlockBytes = kSide * sizeof(Bits);

/// Lines are windows; k is a column.
template <>
void Windows::pack<Order::kLines>(std::int64_t first, std::int64_t lines, std::int64_t begin,
                                  std::int64_t depth, Bits* to) const {
  const std::int64_t tile_count = tiles::tiles_along(depth), end = tile_count * kStep;
  for (std::int64_t panel = 0; panel < lines; panel += kSide, to += tile_count * kTile) {
    const std::int64_t count = std::min(kSide, lines - panel);
    std::array<const Bits*, kSide> from{};
    std::int64_t tap = -1;
    Blocks blocks(*this, begin);
    for (std::int64_t k = 0; k < end; k += kSide, blocks.next()) {
      Bits* line = to + k / kStep * kTile + k % kStep;
      if (k >= depth) from = {};
      if (k < depth && tap != blocks.tap()) {
        tap = blocks.tap();
        WindowWalk window(*this, first + panel);
        for (std::int64_t i = 0; i < count; ++i, window.next())
          from[static_cast<std::size_t>(i)] = window.at(tap / columns.kernel, tap % columns.kernel);
      }
      const std::int64_t offset = blocks.block() * positions * kSide;
      for (const Bits* numbers : from) {
        if (numbers) {
          std::memcpy(line, numbers + offset, kBlockBytes);
        } else {
          std::memset(line, 0, kBlockBytes);
        }
        line += kStep;
      }
    }
  }
}

/// Lines are columns; k is a window.
template <>
void Windows::pack<Order::kPairs>(std::int64_t first, std::int64_t lines, std::int64_t begin,
                                  std::int64_t depth, Bits* to) const {
  static constexpr Bits kZeros[kSide] = {};
  const std::int64_t tile_count = tiles::tiles_along(depth);
  Blocks blocks(*this, first);
  // The columns of a tap lie side by side: its windows are looked up once for all.
  constexpr std::int64_t kTogether = 64;
  for (std::int64_t line = 0; line < lines;) {
    const std::int64_t tap = blocks.tap(), block = blocks.block();
    std::int64_t panels = 0;
    for (; line < lines && blocks.tap() == tap; line += kSide, ++panels) blocks.next();
    WindowWalk window(*this, begin);
    for (std::int64_t k = 0; k < tile_count * kStep; k += kTogether) {
      std::array<const Bits*, kTogether> from{};
      for (std::int64_t i = 0; i < std::min(kTogether, depth - k); ++i, window.next())
        from[static_cast<std::size_t>(i)] = window.at(tap / columns.kernel, tap % columns.kernel);
      const std::int64_t end = std::min(kTogether, tile_count * kStep - k);
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t offset = (block + p) * positions * kSide;
        Bits* const panel = to + p * tile_count * kTile + k * kSide;
        for (std::int64_t i = 0; i < end; i += 2) {
          const Bits *low = from[static_cast<std::size_t>(i)],
                     *high = from[static_cast<std::size_t>(i + 1)];
          tiles::interleave(low ? low + offset : kZeros, high ? high + offset : kZeros,
                            panel + i * kSide);
        }
      }
    }
    to += panels * tile_count * kTile;
  }
}

/// A map as a matrix whose lines are channels, and whose k are the positions of all samples:
/// windows of one position, transposed.
struct Channels {
  const Bits* map;
  std::int64_t channels, positions;

  template <Order kOrder>
  void pack(std::int64_t first, std::int64_t lines, std::int64_t begin, std::int64_t depth,
            Bits* to) const {
    static_assert(kOrder == Order::kLines);
    const WindowAxis row, column{positions, 1, 1, 1, 0, 0, positions};
    const Windows windows{map, channels, positions, positions, row, column, /*transposed=*/false};
    const std::int64_t elements = tiles::tiles_along(depth) * kTile;
    for (std::int64_t line = 0; line < lines; line += kSide, to += elements) {
      windows.pack<Order::kPairs>(first + line, kSide, begin, depth, to);
      for (Bits* tile = to; tile < to + elements; tile += kTile) {
        alignas(64) Bits pairs[kTile];
        std::copy_n(tile, kTile, pairs);
        tiles::transpose_tile(pairs, tile);
      }
    }
  }
};

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

/// (outputs, inputs, taps) to (outputs, taps, inputs), or for the input gradient (taps, outputs,
/// inputs); `order` has the taps as they follow each other there.
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

void forward(const TileConvolution& shape, const tiles::Instructions& instructions, const Bits* x,
             const Bits* w, const float* bias, Bits* y, std::byte* workspace, int threads) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(shape.taps()));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  w = ordered_weights(shape, /*input_gradient=*/false, order, w, workspace, threads);
  const GemmShape product = pass_shape(shape);
  const Windows windows{x,          shape.inputs,  positions_of_x(shape), shape.columns.input,
                        shape.rows, shape.columns, /*transposed=*/false};
  tiles::run(instructions,
             tiles::Operation{product, windows, tiles::Lines<Bits>{w, product.k, 1},
                              static_cast<const Bits*>(nullptr),
                              BlockedRows{y, product.n, positions_of_y(shape), bias}},
             workspace, threads);
}

/// A product for each pair of phases, so that none multiplies by zeros between the outputs.
void input_gradient(const TileConvolution& shape, const tiles::Instructions& instructions,
                    const Bits* dy, const Bits* w, Bits* dx, std::byte* workspace, int threads) {
  const std::vector<Phase> down = phases_of(shape.rows), across = phases_of(shape.columns);
  std::vector<std::int64_t> order;
  bool reaches_all = true;
  for (const Phase& rows : down) {
    for (const Phase& columns : across) {
      const std::int64_t taps = rows.axis.kernel * columns.axis.kernel;
      reaches_all = reaches_all && taps > 0;
      for (std::int64_t t = 0; t < taps; ++t) {
        const std::int64_t row = rows.first_tap + t / columns.axis.kernel * rows.tap_step;
        const std::int64_t column = columns.first_tap + t % columns.axis.kernel * columns.tap_step;
        order.push_back(row * shape.columns.kernel + column);
      }
    }
  }
  if (!reaches_all) {
    const std::int64_t maps = shape.batch * shape.inputs, size = positions_of_x(shape);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t map = 0; map < maps; ++map) std::fill_n(dx + map * size, size, Bits{0});
  }
  w = ordered_weights(shape, /*input_gradient=*/true, order, w, workspace, threads);
  for (const Phase& rows : down) {
    for (const Phase& columns : across) {
      const GemmShape product = pass_shape(shape, rows, columns);
      if (product.k == 0) continue;
      const Windows windows{dy,        shape.outputs, positions_of_y(shape), shape.columns.output,
                            rows.axis, columns.axis,  /*transposed=*/true};
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
  const std::int64_t inputs = shape.inputs, taps = shape.taps(), outputs = shape.outputs;
  const bool direct = taps == 1;
  // (outputs, taps, inputs)
  float* const sums = direct ? dw : reinterpret_cast<float*>(workspace);
  if (!direct) workspace += weight_bytes(shape, sizeof(float));
  const Channels gradients{dy, outputs, positions_of_y(shape)};
  const Windows windows{x,          inputs,        positions_of_x(shape), shape.columns.input,
                        shape.rows, shape.columns, /*transposed=*/false};
  tiles::run(instructions,
             tiles::Operation{product, gradients, windows, static_cast<const Bits*>(nullptr),
                              tiles::Rows<float>{sums, product.n, nullptr, direct && add}},
             workspace, threads);
  if (direct) return;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t o = 0; o < outputs; ++o) {
    const float* from = sums + o * taps * inputs;
    float* to = dw + o * inputs * taps;
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t t = 0; t < taps; ++t, ++to)
        *to = add ? *to + from[t * inputs + i] : from[t * inputs + i];
    }
  }
}

}  // namespace

std::optional<TileConvolution> tile_convolution(const ConvGeometry& geometry) {
  if (geometry.group != 1 || geometry.window.size() != 2) return {};
  if (geometry.inputs % kSide != 0 || geometry.outputs % kSide != 0) return {};
  return TileConvolution{geometry.batch, geometry.inputs, geometry.outputs, geometry.window[0],
                         geometry.window[1]};
}

std::unique_ptr<Kernel> make_tile_pass(const TileConvolution& shape, bool input_gradient,
                                       const tiles::Instructions& instructions) {
  const int threads = omp_get_max_threads();
  const std::size_t ordered = shape.taps() > 1 ? weight_bytes(shape, sizeof(Bits)) : 0;
  if (!input_gradient) {
    return make_kernel(
        [=, &instructions](std::span<const Tensor> in, std::span<const Tensor> out,
                           const RunContext& context) {
          forward(shape, instructions, in[0].as<Bits>(), in[1].as<Bits>(),
                  data_or_null<float>(in, 2), out[0].as<Bits>(), context.workspace, threads);
        },
        ordered + tiles::run_workspace_bytes(pass_shape(shape), threads));
  }
  std::size_t most = 0;
  for (const Phase& rows : phases_of(shape.rows)) {
    for (const Phase& columns : phases_of(shape.columns)) {
      const GemmShape product = pass_shape(shape, rows, columns);
      if (product.k > 0) most = std::max(most, tiles::run_workspace_bytes(product, threads));
    }
  }
  return make_kernel(
      [=, &instructions](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext& context) {
        pipetrain::input_gradient(shape, instructions, in[0].as<Bits>(), in[1].as<Bits>(),
                                  out[0].as<Bits>(), context.workspace, threads);
      },
      ordered + most);
}

std::unique_ptr<Kernel> make_tile_weight_gradient(const TileConvolution& shape,
                                                  const tiles::Instructions& instructions) {
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
