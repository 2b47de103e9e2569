// Float Lstm, Gru and Rnn with the usual activations. The recurrent weights are packed once per
// run; a step is one product whose tiles of 16 hidden units go through the gates while they are in
// the first cache. Threads share out the units and meet once a step.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "base/error.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/narrow_cpu.h"
#include "ops/kernel/vector_math_cpu.h"
#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/packed_pairs_cpu.h"
#include "ops/matmul/packed_product_cpu.h"
#include "ops/recurrent/recurrent.h"

namespace pipetrain::recurrent {
namespace {

using packed::kColumns;
using Tensors = std::span<const Tensor>;

constexpr std::int64_t kRows = 48;  // samples whose tile is computed at a time
constexpr std::int64_t kParallelProducts = 1 << 14;

/// The samples and hidden units that a tile belongs to.
struct Tile {
  std::int64_t first_sample;
  std::int64_t samples;
  std::int64_t first_unit;
  std::int64_t units;

  /// Where unit 0 of row `sample` of the tile stands in a tensor of `width` columns a sample.
  std::int64_t at(std::int64_t sample, std::int64_t width) const {
    return (first_sample + sample) * width + first_unit;
  }
};

/// Calls visit for every tile of hidden units `block`.
template <class Visit>
void for_each_tile(const Geometry& g, std::int64_t block, Visit visit) {
  const std::int64_t first = block * kColumns;
  for (std::int64_t sample = 0; sample < g.samples; sample += kRows) {
    visit(Tile{sample, std::min(kRows, g.samples - sample), first,
               std::min(kColumns, g.hidden - first)});
  }
}

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }

/// How states and gradients of gates are stored and multiplied: as float, or as bfloat16 numbers
/// with instructions for them. All else is float.
using BFloat16 = std::uint16_t;
template <class Stored>
constexpr std::int64_t kTermsOfCell = std::is_same_v<Stored, float> ? 1 : 2;

inline float widened(float value) { return value; }
inline float widened(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}
inline void store(float value, float& to) { to = value; }
/// As round_to_bfloat16().
inline void store(float value, BFloat16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  to = static_cast<BFloat16>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
}

/// c = a times a panel of pack_transposed() or pack().
inline void multiply(std::int64_t rows, std::int64_t depth, const float* a, const float* panel,
                     float* c) {
  packed::multiply(rows, depth, a, depth, panel, c);
}
inline void multiply(std::int64_t rows, std::int64_t depth, const BFloat16* a, const float* panel,
                     float* c) {
  packed::multiply_pairs(rows, depth, a, depth, panel, c);
}
inline void pack_transposed(const float* r, std::int64_t hidden, std::int64_t first, float* panel) {
  packed::pack_transposed(r, hidden, hidden, hidden, first, panel);
}
inline void pack_transposed(const BFloat16* r, std::int64_t hidden, std::int64_t first,
                            float* panel) {
  packed::pack_pairs({r, 1, hidden}, hidden, hidden, first, panel);
}
inline void pack(const float* r, std::int64_t hidden, std::int64_t depth, std::int64_t first,
                 float* panel) {
  packed::pack(r, hidden, hidden, depth, first, panel);
}
inline void pack(const BFloat16* r, std::int64_t hidden, std::int64_t depth, std::int64_t first,
                 float* panel) {
  packed::pack_pairs({r, hidden, 1}, hidden, depth, first, panel);
}

/// The forward steps of a layer with kGates gates. state(order) is where h stands after the step
/// `order`; state(-1) is the initial one, null for zero. gates(order, tile, products) makes the new
/// state from the products (kGates, kRows, 16).
template <int kGates, class Stored = float>
class ForwardSteps {
 public:
  explicit ForwardSteps(const Geometry& geometry) : g_(geometry) {}

  std::int64_t workspace_floats() const {
    return packed::panels(g_.hidden) * kGates * g_.hidden * kColumns / kTermsOfCell<Stored>;
  }

  template <class State, class Gates>
  void run(const Stored* r, float* panels, State state, Gates gates) const {
    const std::int64_t blocks = packed::panels(g_.hidden);
    const std::int64_t panel = g_.hidden * kColumns / kTermsOfCell<Stored>;
#pragma omp parallel if (g_.state() * g_.hidden > kParallelProducts)
    {
#pragma omp for schedule(static)
      for (std::int64_t index = 0; index < blocks * kGates; ++index) {
        pack_transposed(r + index % kGates * g_.hidden * g_.hidden, g_.hidden,
                        index / kGates * kColumns, panels + index * panel);
      }
      alignas(64) float products[kGates * kRows * kColumns];
      for (std::int64_t order = 0; order < g_.steps; ++order) {
        const Stored* before = state(order - 1);
#pragma omp for schedule(static)
        for (std::int64_t block = 0; block < blocks; ++block) {
          for_each_tile(g_, block, [&](const Tile& tile) {
            for (std::int64_t gate = 0; gate < kGates; ++gate) {
              float* c = products + gate * kRows * kColumns;
              if (before) {
                multiply(tile.samples, g_.hidden, before + tile.first_sample * g_.hidden,
                         panels + (block * kGates + gate) * panel, c);
              } else {
                std::fill_n(c, tile.samples * kColumns, 0.0f);
              }
            }
            gates(order, tile, products);
          });
        }
      }
    }
  }

 private:
  Geometry g_;
};

/// The backward steps: gates(order, tile, dh) makes the gradient of the gates of one step, which
/// gradients(order) holds, from what the later steps send back to h, (kRows, 16).
template <int kGates, class Stored = float>
class BackwardSteps {
 public:
  explicit BackwardSteps(const Geometry& geometry) : g_(geometry) {}

  std::int64_t workspace_floats() const {
    return packed::panels(g_.hidden) * kGates * g_.hidden * kColumns / kTermsOfCell<Stored>;
  }

  /// dlast_h and dh0 may be null.
  template <class Gradients, class Carried, class Gates>
  void run(const Stored* r, float* panels, const float* dlast_h, float* dh0, Gradients gradients,
           Carried carried, Gates gates) const {
    const std::int64_t blocks = packed::panels(g_.hidden);
    const std::int64_t depth = kGates * g_.hidden;
    const std::int64_t panel = depth * kColumns / kTermsOfCell<Stored>;
#pragma omp parallel if (g_.state() * g_.hidden > kParallelProducts)
    {
#pragma omp for schedule(static)
      for (std::int64_t block = 0; block < blocks; ++block) {
        pack(r, g_.hidden, depth, block * kColumns, panels + block * panel);
      }
      alignas(64) float dh[kRows * kColumns];
      // Order -1 stands for the initial state.
      for (std::int64_t order = g_.steps - 1; order >= (dh0 ? -1 : 0); --order) {
        const Stored* later = order + 1 < g_.steps ? gradients(order + 1) : nullptr;
#pragma omp for schedule(static)
        for (std::int64_t block = 0; block < blocks; ++block) {
          for_each_tile(g_, block, [&](const Tile& tile) {
            if (later) {
              multiply(tile.samples, depth, later + tile.first_sample * depth,
                       panels + block * panel, dh);
              carried(tile, dh);
            } else {
              std::fill_n(dh, tile.samples * kColumns, 0.0f);
              for (std::int64_t n = 0; dlast_h && n < tile.samples; ++n) {
                std::copy_n(dlast_h + tile.at(n, g_.hidden), tile.units, dh + n * kColumns);
              }
            }
            if (order >= 0) {
              gates(order, tile, dh);
              return;
            }
            for (std::int64_t n = 0; n < tile.samples; ++n) {
              std::copy_n(dh + n * kColumns, tile.units, dh0 + tile.at(n, g_.hidden));
            }
          });
        }
      }
    }
  }

 private:
  Geometry g_;
};

/// What of a run's memory is for what.
class Workspace {
 public:
  explicit Workspace(const RunContext& context)
      : next_(reinterpret_cast<float*>(context.workspace)) {}
  float* take(std::int64_t count) {
    float* out = next_;
    next_ += count;
    return out;
  }
  /// Of any element of at most 32 bits.
  template <class Element>
  Element* take_as(std::int64_t count) {
    return reinterpret_cast<Element*>(take(count));
  }

 private:
  float* next_;
};

/// A sequence of states or gradients that is kept, or of which only the last two steps are.
template <class Stored = float>
struct Sequence {
  Geometry g;
  std::int64_t width;  // columns of a sample
  Stored* all;         // null: not kept
  Stored* last_two;

  Stored* operator[](std::int64_t order) const {
    const std::int64_t size = g.samples * width;
    return all ? all + g.step(order) * size : last_two + (order & 1) * size;
  }
};

/// An initial state as the steps keep theirs, `to` being memory for that; null stays null.
inline const float* stored_state(const float* from, std::int64_t, float*) { return from; }
inline const BFloat16* stored_state(const float* from, std::int64_t count, BFloat16* to) {
  if (from) round_to_bfloat16(from, to, count);
  return from ? to : nullptr;
}

void copy_if(const BFloat16* from, std::int64_t count, float* to) {
  if (to && from) widen_bfloat16(from, to, count);
}
void copy_if(const float* from, std::int64_t count, float* to) {
  if (to && from) std::copy_n(from, count, to);
  if (to && !from) std::fill_n(to, count, 0.0f);
}

// --- Lstm ---

/// Null where a value is not wanted or absent; all begin at unit 0 of the tile's sample.
template <class Stored>
struct LstmRow {
  const Stored* gates;
  const float* products;  // its first gate; the others follow after kRows rows each
  const float* c_before;
  float* c;
  Stored* h;
  Stored* activated;
};

template <bool kKeep, class Stored>
void lstm_row(const LstmRow<Stored>& row, std::int64_t hidden, std::int64_t units) {
  constexpr std::int64_t kGate = kRows * kColumns;
  const Stored* __restrict x = row.gates;
  const float* __restrict p = row.products;
  Stored* __restrict a = row.activated;
  Stored* __restrict h = row.h;
  float* c = row.c;
  const float* before = row.c_before;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float input = vector_math::sigmoid(widened(x[j]) + p[j]);
    const float output = vector_math::sigmoid(widened(x[hidden + j]) + p[kGate + j]);
    const float forget = vector_math::sigmoid(widened(x[2 * hidden + j]) + p[2 * kGate + j]);
    const float fresh = vector_math::tanh(widened(x[3 * hidden + j]) + p[3 * kGate + j]);
    const float cell = forget * before[j] + input * fresh;
    c[j] = cell;
    store(output * vector_math::tanh(cell), h[j]);
    if constexpr (kKeep) {
      store(input, a[j]);
      store(output, a[hidden + j]);
      store(forget, a[2 * hidden + j]);
      store(fresh, a[3 * hidden + j]);
    }
  }
}

template <class Stored>
std::unique_ptr<Kernel> make_lstm_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, 4);
  const ForwardSteps<4, Stored> steps(g);
  const std::int64_t state = g.state();
  return make_kernel(
      [g, steps, state](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0 || g.steps == 0) return;
        Workspace workspace(context);
        float* panels = workspace.take(steps.workspace_floats());
        float* zero = workspace.take(state);
        std::fill_n(zero, state, 0.0f);
        const Stored* gates = in[0].as<Stored>();
        const Stored* h0 =
            stored_state(data_or_null<float>(in, 2), state, workspace.take_as<Stored>(state));
        const float* c0 = data_or_null<float>(in, 3);
        if (!c0) c0 = zero;
        Stored* activated = data_or_null<Stored>(out, 3);
        const Sequence<Stored> h{g, g.hidden, out[0].as<Stored>(),
                                 workspace.take_as<Stored>(2 * state)};
        const Sequence<> c{g, g.hidden, data_or_null<float>(out, 4), workspace.take(2 * state)};
        const std::int64_t width = 4 * g.hidden;
        steps.run(
            in[1].as<Stored>(), panels,
            [&](std::int64_t order) { return order < 0 ? h0 : h[order]; },
            [&](std::int64_t order, const Tile& tile, const float* products) {
              const std::int64_t offset = g.step(order) * g.samples * width;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const LstmRow<Stored> row{
                    gates + offset + tile.at(n, width),
                    products + n * kColumns,
                    (order > 0 ? c[order - 1] : c0) + unit,
                    c[order] + unit,
                    h[order] + unit,
                    activated ? activated + offset + tile.at(n, width) : nullptr};
                if (activated) {
                  lstm_row<true>(row, g.hidden, tile.units);
                } else {
                  lstm_row<false>(row, g.hidden, tile.units);
                }
              }
            });
        copy_if(h[g.steps - 1], state, data_or_null<float>(out, 1));
        copy_if(c[g.steps - 1], state, data_or_null<float>(out, 2));
      },
      floats(steps.workspace_floats() + 6 * state));
}

std::unique_ptr<Kernel> make_lstm(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_lstm_of<BFloat16>(request);
  const auto absent = [&](std::size_t input) {
    return input >= request.inputs.size() || request.inputs[input].dtype == DType::kUndefined;
  };
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32 ||
      !is_usual_lstm(request.node.attributes) || !absent(4) || !absent(5)) {
    return nullptr;
  }
  return make_lstm_of<float>(request);
}

template <class Stored>
struct LstmGradientRow {
  const float* dh;   // from later steps
  const Stored* dy;  // null: none
  const Stored* activated;
  const float* c;
  const float* c_before;
  float* dc;  // from later steps; becomes that of the step before
  Stored* dgates;
};

template <bool kGradientOfY, class Stored>
void lstm_gradient_row(const LstmGradientRow<Stored>& row, std::int64_t hidden,
                       std::int64_t units) {
  const Stored* __restrict a = row.activated;
  const float* __restrict later = row.dh;
  const Stored* __restrict dy = row.dy;
  const float* __restrict c = row.c;
  const float* __restrict before = row.c_before;
  float* __restrict dc = row.dc;
  Stored* __restrict d = row.dgates;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float input = widened(a[j]);
    const float output = widened(a[hidden + j]);
    const float forget = widened(a[2 * hidden + j]);
    const float fresh = widened(a[3 * hidden + j]);
    const float squashed = vector_math::tanh(c[j]);
    float dh = later[j];
    if constexpr (kGradientOfY) dh += widened(dy[j]);
    const float dcell = dc[j] + dh * output * (1.0f - squashed * squashed);
    store(dcell * fresh * input * (1.0f - input), d[j]);
    store(dh * squashed * output * (1.0f - output), d[hidden + j]);
    store(dcell * before[j] * forget * (1.0f - forget), d[2 * hidden + j]);
    store(dcell * input * (1.0f - fresh * fresh), d[3 * hidden + j]);
    dc[j] = dcell * forget;
  }
}

// dy, dlast_h, dlast_c, r, activated, cells, c0, peepholes, lengths -> dgates, dh0, dc0
template <class Stored>
std::unique_ptr<Kernel> make_lstm_gradient_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[4].shape, 4);
  const BackwardSteps<4, Stored> steps(g);
  const std::int64_t state = g.state();
  return make_kernel(
      [g, steps, state](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        Workspace workspace(context);
        float* panels = workspace.take(steps.workspace_floats());
        float* zero = workspace.take(state);
        float* dc = workspace.take(state);
        std::fill_n(zero, state, 0.0f);
        copy_if(data_or_null<float>(in, 2), state, dc);
        const std::int64_t width = 4 * g.hidden;
        const Sequence<Stored> d{g, width, out[0].as<Stored>(),
                                 workspace.take_as<Stored>(2 * g.samples * width)};
        const Stored* dy = data_or_null<Stored>(in, 0);
        const Stored* activated = in[4].as<Stored>();
        const float* cells = in[5].as<float>();
        const float* c0 = data_or_null<float>(in, 6);
        if (!c0) c0 = zero;
        steps.run(
            in[3].as<Stored>(), panels, data_or_null<float>(in, 1), data_or_null<float>(out, 1),
            [&](std::int64_t order) { return d[order]; }, [](const Tile&, float*) {},
            [&](std::int64_t order, const Tile& tile, const float* dh) {
              const std::int64_t step = g.step(order) * state;
              const float* before = order > 0 ? cells + g.step(order - 1) * state : c0;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const LstmGradientRow<Stored> row{dh + n * kColumns,
                                                  dy ? dy + step + unit : nullptr,
                                                  activated + 4 * step + tile.at(n, width),
                                                  cells + step + unit,
                                                  before + unit,
                                                  dc + unit,
                                                  d[order] + tile.at(n, width)};
                if (dy) {
                  lstm_gradient_row<true>(row, g.hidden, tile.units);
                } else {
                  lstm_gradient_row<false>(row, g.hidden, tile.units);
                }
              }
            });
        copy_if(dc, state, data_or_null<float>(out, 2));
      },
      floats(steps.workspace_floats() + 2 * state + 8 * state));
}

std::unique_ptr<Kernel> make_lstm_gradient(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_lstm_gradient_of<BFloat16>(request);
  const auto absent = [&](std::size_t input) {
    return input >= request.inputs.size() || request.inputs[input].dtype == DType::kUndefined;
  };
  if (!is_row_major(request) || request.inputs[3].dtype != DType::kFloat32 ||
      !is_usual_lstm(request.node.attributes) || !absent(7) || !absent(8)) {
    return nullptr;
  }
  return make_lstm_gradient_of<float>(request);
}

// --- Gru with linear_before_reset ---

struct GruRow {
  const float* gates;
  const float* products;
  const float* bias;  // of the hidden part
  const float* before;
  float* h;
  float* activated;  // null: not wanted, nor is hidden
  float* hidden_part;
};

template <bool kKeep>
void gru_row(const GruRow& row, std::int64_t hidden, std::int64_t units) {
  constexpr std::int64_t kGate = kRows * kColumns;
  const float* __restrict x = row.gates;
  const float* __restrict p = row.products;
  const float* __restrict bias = row.bias;
  const float* __restrict before = row.before;
  float* __restrict h = row.h;
  float* __restrict a = row.activated;
  float* __restrict part_out = row.hidden_part;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float update = vector_math::sigmoid(x[j] + p[j]);
    const float reset = vector_math::sigmoid(x[hidden + j] + p[kGate + j]);
    const float part = p[2 * kGate + j] + bias[j];
    const float fresh = vector_math::tanh(x[2 * hidden + j] + reset * part);
    h[j] = fresh + update * (before[j] - fresh);
    if constexpr (kKeep) {
      a[j] = update;
      a[hidden + j] = reset;
      a[2 * hidden + j] = fresh;
      part_out[j] = part;
    }
  }
}

std::unique_ptr<Kernel> make_gru(const KernelRequest& request) {
  const bool lengths = request.inputs.size() > 4 && request.inputs[4].dtype != DType::kUndefined;
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32 ||
      !is_usual_gru(request.node.attributes) || lengths) {
    return nullptr;
  }
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, 3);
  const ForwardSteps<3> steps(g);
  const std::int64_t state = g.state();
  return make_kernel(
      [g, steps, state](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0 || g.steps == 0) return;
        Workspace workspace(context);
        float* panels = workspace.take(steps.workspace_floats());
        float* zero = workspace.take(state);
        std::fill_n(zero, state, 0.0f);
        const float* gates = in[0].as<float>();
        const float* bias = data_or_null<float>(in, 2);
        const float* h0 = data_or_null<float>(in, 3);
        const Sequence<> h{g, g.hidden, out[0].as<float>(), workspace.take(2 * state)};
        float* activated = data_or_null<float>(out, 2);
        float* parts = data_or_null<float>(out, 3);
        const bool keep = activated && parts;
        const std::int64_t width = 3 * g.hidden;
        steps.run(
            in[1].as<float>(), panels,
            [&](std::int64_t order) { return order < 0 ? h0 : h[order]; },
            [&](std::int64_t order, const Tile& tile, const float* products) {
              const std::int64_t step = g.step(order) * state;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const float* before = order > 0 ? h[order - 1] : h0 ? h0 : zero;
                const GruRow row{gates + 3 * step + tile.at(n, width),
                                 products + n * kColumns,
                                 bias ? bias + tile.first_unit : zero,
                                 before + unit,
                                 h[order] + unit,
                                 keep ? activated + 3 * step + tile.at(n, width) : nullptr,
                                 keep ? parts + step + unit : nullptr};
                if (keep) {
                  gru_row<true>(row, g.hidden, tile.units);
                } else {
                  gru_row<false>(row, g.hidden, tile.units);
                }
              }
            });
        copy_if(h[g.steps - 1], state, data_or_null<float>(out, 1));
      },
      floats(steps.workspace_floats() + 3 * state));
}

// dy, dlast_h, r, activated, hidden, y, h0, lengths -> dgates, drecurrent, dh0
std::unique_ptr<Kernel> make_gru_gradient(const KernelRequest& request) {
  const bool lengths = request.inputs.size() > 7 && request.inputs[7].dtype != DType::kUndefined;
  if (!is_row_major(request) || request.inputs[2].dtype != DType::kFloat32 ||
      !is_usual_gru(request.node.attributes) || lengths) {
    return nullptr;
  }
  const Geometry g = geometry_of(request.node.attributes, request.inputs[3].shape, 3);
  const BackwardSteps<3> steps(g);
  const std::int64_t state = g.state();
  return make_kernel(
      [g, steps, state](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        Workspace workspace(context);
        float* panels = workspace.take(steps.workspace_floats());
        float* zero = workspace.take(state);
        float* direct = workspace.take(state);  // what h sends to the h before it without weights
        std::fill_n(zero, state, 0.0f);
        const std::int64_t width = 3 * g.hidden;
        const Sequence<> inner{g, width, data_or_null<float>(out, 1),
                               workspace.take(2 * g.samples * width)};
        float* dgates = data_or_null<float>(out, 0);
        const float* dy = data_or_null<float>(in, 0);
        const float* activated = in[3].as<float>();
        const float* parts = in[4].as<float>();
        const float* y = in[5].as<float>();
        const float* h0 = data_or_null<float>(in, 6);
        if (!h0) h0 = zero;
        steps.run(
            in[2].as<float>(), panels, data_or_null<float>(in, 1), data_or_null<float>(out, 2),
            [&](std::int64_t order) { return inner[order]; },
            [&](const Tile& tile, float* dh) {
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const float* from = direct + tile.at(n, g.hidden);
                for (std::int64_t j = 0; j < tile.units; ++j) dh[n * kColumns + j] += from[j];
              }
            },
            [&](std::int64_t order, const Tile& tile, const float* dh) {
              const std::int64_t step = g.step(order) * state;
              const float* before = order > 0 ? y + g.step(order - 1) * state : h0;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const std::int64_t gate = tile.at(n, width);
                const float* __restrict a = activated + 3 * step + gate;
                const float* __restrict later = dh + n * kColumns;
                const float* __restrict dy_row = dy ? dy + step + unit : zero;
                const float* __restrict part = parts + step + unit;
                const float* __restrict h = before + unit;
                float* __restrict next = direct + unit;
                float* __restrict d = inner[order] + gate;
                float dfresh_row[kColumns];
#pragma omp simd
                for (std::int64_t j = 0; j < tile.units; ++j) {
                  const float update = a[j];
                  const float reset = a[g.hidden + j];
                  const float fresh = a[2 * g.hidden + j];
                  const float total = later[j] + dy_row[j];
                  const float dfresh = total * (1.0f - update) * (1.0f - fresh * fresh);
                  d[j] = total * (h[j] - fresh) * update * (1.0f - update);
                  d[g.hidden + j] = dfresh * part[j] * reset * (1.0f - reset);
                  d[2 * g.hidden + j] = dfresh * reset;
                  dfresh_row[j] = dfresh;
                  next[j] = total * update;
                }
                if (!dgates) continue;
                float* to = dgates + 3 * step + gate;
                std::copy_n(d, tile.units, to);
                std::copy_n(d + g.hidden, tile.units, to + g.hidden);
                std::copy_n(dfresh_row, tile.units, to + 2 * g.hidden);
              }
            });
      },
      floats(steps.workspace_floats() + 2 * state + 6 * state));
}

// --- Rnn ---

bool is_usual_rnn(const Attributes& attributes, ActivationKind kind) {
  return attributes.real("clip", 0) == 0 && activations_of(attributes)[0].kind == kind;
}

template <bool kTanh>
std::unique_ptr<Kernel> make_rnn_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, 1);
  const ForwardSteps<1> steps(g);
  const std::int64_t state = g.state();
  return make_kernel(
      [g, steps, state](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0 || g.steps == 0) return;
        Workspace workspace(context);
        float* panels = workspace.take(steps.workspace_floats());
        const float* gates = in[0].as<float>();
        const float* h0 = data_or_null<float>(in, 2);
        const Sequence<> h{g, g.hidden, out[0].as<float>(), workspace.take(2 * state)};
        steps.run(
            in[1].as<float>(), panels,
            [&](std::int64_t order) { return order < 0 ? h0 : h[order]; },
            [&](std::int64_t order, const Tile& tile, const float* products) {
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const float* __restrict x = gates + g.step(order) * state + unit;
                const float* __restrict p = products + n * kColumns;
                float* __restrict to = h[order] + unit;
#pragma omp simd
                for (std::int64_t j = 0; j < tile.units; ++j) {
                  const float z = x[j] + p[j];
                  to[j] = kTanh ? vector_math::tanh(z) : (z > 0.0f ? z : 0.0f);
                }
              }
            });
        copy_if(h[g.steps - 1], state, data_or_null<float>(out, 1));
      },
      floats(steps.workspace_floats() + 2 * state));
}

std::unique_ptr<Kernel> make_rnn(const KernelRequest& request) {
  const bool lengths = request.inputs.size() > 3 && request.inputs[3].dtype != DType::kUndefined;
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32 || lengths) {
    return nullptr;
  }
  const Attributes& attributes = request.node.attributes;
  if (is_usual_rnn(attributes, ActivationKind::kTanh)) return make_rnn_of<true>(request);
  if (is_usual_rnn(attributes, ActivationKind::kRelu)) return make_rnn_of<false>(request);
  return nullptr;
}

// dy, dlast_h, r, y, lengths -> dgates, dh0
template <bool kTanh>
std::unique_ptr<Kernel> make_rnn_gradient_of(const KernelRequest& request) {
  const Geometry g = geometry_of(request.node.attributes, request.inputs[3].shape, 1);
  const BackwardSteps<1> steps(g);
  const std::int64_t state = g.state();
  return make_kernel(
      [g, steps, state](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0) return;
        Workspace workspace(context);
        float* panels = workspace.take(steps.workspace_floats());
        float* zero = workspace.take(kColumns);
        std::fill_n(zero, kColumns, 0.0f);
        const Sequence<> d{g, g.hidden, out[0].as<float>(), workspace.take(2 * state)};
        const float* dy = data_or_null<float>(in, 0);
        const float* y = in[3].as<float>();
        steps.run(
            in[2].as<float>(), panels, data_or_null<float>(in, 1), data_or_null<float>(out, 1),
            [&](std::int64_t order) { return d[order]; }, [](const Tile&, float*) {},
            [&](std::int64_t order, const Tile& tile, const float* dh) {
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const std::int64_t at = g.step(order) * state + unit;
                const float* __restrict later = dh + n * kColumns;
                const float* __restrict dy_row = dy ? dy + at : zero;
                const float* __restrict h = y + at;
                float* __restrict to = d[order] + unit;
#pragma omp simd
                for (std::int64_t j = 0; j < tile.units; ++j) {
                  const float total = later[j] + dy_row[j];
                  to[j] = kTanh ? total * (1.0f - h[j] * h[j]) : (h[j] > 0.0f ? total : 0.0f);
                }
              }
            });
      },
      floats(steps.workspace_floats() + kColumns + 2 * state));
}

std::unique_ptr<Kernel> make_rnn_gradient(const KernelRequest& request) {
  const bool lengths = request.inputs.size() > 4 && request.inputs[4].dtype != DType::kUndefined;
  if (!is_row_major(request) || request.inputs[2].dtype != DType::kFloat32 || lengths) {
    return nullptr;
  }
  const Attributes& attributes = request.node.attributes;
  if (is_usual_rnn(attributes, ActivationKind::kTanh)) return make_rnn_gradient_of<true>(request);
  if (is_usual_rnn(attributes, ActivationKind::kRelu)) return make_rnn_gradient_of<false>(request);
  return nullptr;
}

// --- dgates, y, h0, hidden, lengths -> dr ---

/// One product over all steps but one; there is no initial state.
std::unique_ptr<Kernel> make_bfloat16_weight_gradient(const KernelRequest& request) {
  const std::int64_t rows = request.outputs[0].shape[0], hidden = request.outputs[0].shape[1];
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, rows / hidden);
  const GemmShape shape{rows, hidden, (g.steps - 1) * g.samples};
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        const BFloat16* d = in[0].as<BFloat16>() + (g.reverse ? 0 : g.samples * rows);
        const BFloat16* y = in[1].as<BFloat16>() + (g.reverse ? g.state() : 0);
        gemm_bfloat16(shape, {d, 1, rows}, {y, hidden, 1}, nullptr, out[0].as<float>(),
                      context.workspace, threads);
      },
      gemm_bfloat16_workspace_bytes<float>(shape, /*packed=*/false, threads));
}

std::unique_ptr<Kernel> make_weight_gradient(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_bfloat16_weight_gradient(request);
  for (std::size_t input = 3; input < request.inputs.size(); ++input) {
    if (request.inputs[input].dtype != DType::kUndefined) return nullptr;
  }
  if (!is_row_major(request) || request.outputs[0].dtype != DType::kFloat32) return nullptr;
  const std::int64_t rows = request.outputs[0].shape[0];
  const std::int64_t hidden = request.outputs[0].shape[1];
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, rows / hidden);
  return make_kernel([g, rows, hidden](Tensors in, Tensors out, const RunContext&) {
    const float* d = in[0].as<float>();
    const float* y = in[1].as<float>();
    const float* h0 = data_or_null<float>(in, 2);
    float* dr = out[0].as<float>();
    // dr = beta dr + Σ d' states over rows that follow each other.
    const auto multiply = [&](const float* gradient, const float* states, std::int64_t depth,
                              float beta) {
      PT_CHECK(dnnl_sgemm('T', 'N', rows, hidden, depth, 1.0f, gradient, rows, states, hidden, beta,
                          dr, hidden) == dnnl_success,
               kResource, "oneDNN's sgemm failed; is there enough memory?");
    };
    const std::int64_t later = (g.steps - 1) * g.samples;
    if (later > 0 && hidden > 0) {
      const float* gradient = g.reverse ? d : d + g.samples * rows;
      const float* states = g.reverse ? y + g.state() : y;
      multiply(gradient, states, later, 0.0f);
    } else {
      std::fill_n(dr, rows * hidden, 0.0f);
    }
    if (h0 && g.state() > 0) multiply(d + g.step(0) * g.samples * rows, h0, g.samples, 1.0f);
  });
}

constexpr KernelEntry kKernels[] = {
    {"Gru", make_gru},
    {"GruGrad", make_gru_gradient},
    {"Lstm", make_lstm},
    {"LstmGrad", make_lstm_gradient},
    {"RecurrentWeightGrad", make_weight_gradient},
    {"Rnn", make_rnn},
    {"RnnGrad", make_rnn_gradient},
};

}  // namespace

bool takes_bfloat16(const KernelRequest& request) {
  if (!has_gemm_bfloat16() || !is_row_major(request)) return false;
  const std::string_view op = request.node.op->name;
  const auto input = [&](std::size_t i) {
    return i < request.inputs.size() ? request.inputs[i].dtype : DType::kUndefined;
  };
  const auto are = [](DType wanted, std::initializer_list<DType> types) {
    return std::all_of(types.begin(), types.end(),
                       [&](DType type) { return type == DType::kUndefined || type == wanted; });
  };
  const auto output = [&](std::size_t i) {
    return i < request.outputs.size() ? request.outputs[i].dtype : DType::kUndefined;
  };
  constexpr DType kNarrow = DType::kBFloat16, kFloat = DType::kFloat32, kNone = DType::kUndefined;
  if (op == "RecurrentWeightGrad") {
    const Shape& gates = request.inputs[0].shape;
    return input(0) == kNarrow && input(1) == kNarrow && output(0) == kFloat &&
           are(kNone, {input(2), input(3), input(4)}) && gates[0] > 1 &&
           request.outputs[0].shape.count() > 0 && gates[1] > 0;
  }
  if (op != "Lstm" && op != "LstmGrad") return false;
  const bool forward = op == "Lstm";
  const Shape& gates = request.inputs[forward ? 0 : 4].shape;
  if (!is_usual_lstm(request.node.attributes) || gates[2] % 8 != 0) return false;
  if (forward) {
    return input(0) == kNarrow && input(1) == kNarrow && output(0) == kNarrow &&
           are(kNarrow, {output(3)}) &&
           are(kFloat, {input(2), input(3), output(1), output(2), output(4)}) &&
           are(kNone, {input(4), input(5)});
  }
  return input(3) == kNarrow && input(4) == kNarrow && output(0) == kNarrow &&
         are(kNarrow, {input(0)}) &&
         are(kFloat, {input(1), input(2), input(5), input(6), output(1), output(2)}) &&
         are(kNone, {input(7), input(8)});
}

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::recurrent
