// Float Lstm, Gru and Rnn with the usual activations. The recurrent weights are packed once per
// run; a step is one product whose tiles of 16 hidden units go through the gates while they are in
// the first cache. Threads share out the units and meet once a step.
#include <dnnl.h>

#include <algorithm>

#include "base/error.h"
#include "ops/element_types.h"
#include "ops/packed_product_cpu.h"
#include "ops/recurrent.h"
#include "ops/vector_math_cpu.h"

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

/// The forward steps of a layer with kGates gates. state(order) is where h stands after the step
/// `order`; state(-1) is the initial one, null for zero. gates(order, tile, products) makes the new
/// state from the products (kGates, kRows, 16).
template <int kGates>
class ForwardSteps {
 public:
  explicit ForwardSteps(const Geometry& geometry) : g_(geometry) {}

  std::int64_t workspace_floats() const {
    return packed::panels(g_.hidden) * kGates * g_.hidden * kColumns;
  }

  template <class State, class Gates>
  void run(const float* r, float* panels, State state, Gates gates) const {
    const std::int64_t blocks = packed::panels(g_.hidden);
    const std::int64_t panel = g_.hidden * kColumns;
#pragma omp parallel if (g_.state() * g_.hidden > kParallelProducts)
    {
#pragma omp for schedule(static)
      for (std::int64_t index = 0; index < blocks * kGates; ++index) {
        packed::pack_transposed(r + index % kGates * g_.hidden * g_.hidden, g_.hidden, g_.hidden,
                                g_.hidden, index / kGates * kColumns, panels + index * panel);
      }
      alignas(64) float products[kGates * kRows * kColumns];
      for (std::int64_t order = 0; order < g_.steps; ++order) {
        const float* before = state(order - 1);
#pragma omp for schedule(static)
        for (std::int64_t block = 0; block < blocks; ++block) {
          for_each_tile(g_, block, [&](const Tile& tile) {
            for (std::int64_t gate = 0; gate < kGates; ++gate) {
              float* c = products + gate * kRows * kColumns;
              if (before) {
                packed::multiply(tile.samples, g_.hidden, before + tile.first_sample * g_.hidden,
                                 g_.hidden, panels + (block * kGates + gate) * panel, c);
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
template <int kGates>
class BackwardSteps {
 public:
  explicit BackwardSteps(const Geometry& geometry) : g_(geometry) {}

  std::int64_t workspace_floats() const {
    return packed::panels(g_.hidden) * kGates * g_.hidden * kColumns;
  }

  /// dlast_h and dh0 may be null.
  template <class Gradients, class Carried, class Gates>
  void run(const float* r, float* panels, const float* dlast_h, float* dh0, Gradients gradients,
           Carried carried, Gates gates) const {
    const std::int64_t blocks = packed::panels(g_.hidden);
    const std::int64_t depth = kGates * g_.hidden;
    const std::int64_t panel = depth * kColumns;
#pragma omp parallel if (g_.state() * g_.hidden > kParallelProducts)
    {
#pragma omp for schedule(static)
      for (std::int64_t block = 0; block < blocks; ++block) {
        packed::pack(r, g_.hidden, g_.hidden, depth, block * kColumns, panels + block * panel);
      }
      alignas(64) float dh[kRows * kColumns];
      // Order -1 stands for the initial state.
      for (std::int64_t order = g_.steps - 1; order >= (dh0 ? -1 : 0); --order) {
        const float* later = order + 1 < g_.steps ? gradients(order + 1) : nullptr;
#pragma omp for schedule(static)
        for (std::int64_t block = 0; block < blocks; ++block) {
          for_each_tile(g_, block, [&](const Tile& tile) {
            if (later) {
              packed::multiply(tile.samples, depth, later + tile.first_sample * depth, depth,
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

 private:
  float* next_;
};

/// A sequence of states or gradients that is kept, or of which only the last two steps are.
struct Sequence {
  Geometry g;
  std::int64_t width;  // columns of a sample
  float* all;          // null: not kept
  float* last_two;

  float* operator[](std::int64_t order) const {
    const std::int64_t size = g.samples * width;
    return all ? all + g.step(order) * size : last_two + (order & 1) * size;
  }
};

void copy_if(const float* from, std::int64_t count, float* to) {
  if (to && from) std::copy_n(from, count, to);
  if (to && !from) std::fill_n(to, count, 0.0f);
}

// --- Lstm ---

/// Null where a value is not wanted or absent; all begin at unit 0 of the tile's sample.
struct LstmRow {
  const float* gates;
  const float* products;  // its first gate; the others follow after kRows rows each
  const float* c_before;
  float* c;
  float* h;
  float* activated;
};

template <bool kKeep>
void lstm_row(const LstmRow& row, std::int64_t hidden, std::int64_t units) {
  constexpr std::int64_t kGate = kRows * kColumns;
  const float* __restrict x = row.gates;
  const float* __restrict p = row.products;
  float* __restrict a = row.activated;
  float* __restrict h = row.h;
  float* c = row.c;
  const float* before = row.c_before;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float input = vector_math::sigmoid(x[j] + p[j]);
    const float output = vector_math::sigmoid(x[hidden + j] + p[kGate + j]);
    const float forget = vector_math::sigmoid(x[2 * hidden + j] + p[2 * kGate + j]);
    const float fresh = vector_math::tanh(x[3 * hidden + j] + p[3 * kGate + j]);
    const float cell = forget * before[j] + input * fresh;
    c[j] = cell;
    h[j] = output * vector_math::tanh(cell);
    if constexpr (kKeep) {
      a[j] = input;
      a[hidden + j] = output;
      a[2 * hidden + j] = forget;
      a[3 * hidden + j] = fresh;
    }
  }
}

std::unique_ptr<Kernel> make_lstm(const KernelRequest& request) {
  const auto absent = [&](std::size_t input) {
    return input >= request.inputs.size() || request.inputs[input].dtype == DType::kUndefined;
  };
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32 ||
      !is_usual_lstm(request.node.attributes) || !absent(4) || !absent(5)) {
    return nullptr;
  }
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, 4);
  const ForwardSteps<4> steps(g);
  const std::int64_t state = g.state();
  return make_kernel(
      [g, steps, state](Tensors in, Tensors out, const RunContext& context) {
        if (state == 0 || g.steps == 0) return;
        Workspace workspace(context);
        float* panels = workspace.take(steps.workspace_floats());
        float* zero = workspace.take(state);
        std::fill_n(zero, state, 0.0f);
        const float* gates = in[0].as<float>();
        const float* h0 = data_or_null<float>(in, 2);
        const float* c0 = data_or_null<float>(in, 3);
        if (!c0) c0 = zero;
        float* activated = data_or_null<float>(out, 3);
        const Sequence h{g, g.hidden, out[0].as<float>(), workspace.take(2 * state)};
        const Sequence c{g, g.hidden, data_or_null<float>(out, 4), workspace.take(2 * state)};
        const std::int64_t width = 4 * g.hidden;
        steps.run(
            in[1].as<float>(), panels,
            [&](std::int64_t order) { return order < 0 ? h0 : h[order]; },
            [&](std::int64_t order, const Tile& tile, const float* products) {
              const std::int64_t offset = g.step(order) * g.samples * width;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const LstmRow row{gates + offset + tile.at(n, width),
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
      floats(steps.workspace_floats() + 5 * state));
}

struct LstmGradientRow {
  const float* dh;  // from later steps
  const float* dy;  // null: none
  const float* activated;
  const float* c;
  const float* c_before;
  float* dc;  // from later steps; becomes that of the step before
  float* dgates;
};

template <bool kGradientOfY>
void lstm_gradient_row(const LstmGradientRow& row, std::int64_t hidden, std::int64_t units) {
  const float* __restrict a = row.activated;
  const float* __restrict later = row.dh;
  const float* __restrict dy = row.dy;
  const float* __restrict c = row.c;
  const float* __restrict before = row.c_before;
  float* __restrict dc = row.dc;
  float* __restrict d = row.dgates;
#pragma omp simd
  for (std::int64_t j = 0; j < units; ++j) {
    const float input = a[j];
    const float output = a[hidden + j];
    const float forget = a[2 * hidden + j];
    const float fresh = a[3 * hidden + j];
    const float squashed = vector_math::tanh(c[j]);
    float dh = later[j];
    if constexpr (kGradientOfY) dh += dy[j];
    const float dcell = dc[j] + dh * output * (1.0f - squashed * squashed);
    d[j] = dcell * fresh * input * (1.0f - input);
    d[hidden + j] = dh * squashed * output * (1.0f - output);
    d[2 * hidden + j] = dcell * before[j] * forget * (1.0f - forget);
    d[3 * hidden + j] = dcell * input * (1.0f - fresh * fresh);
    dc[j] = dcell * forget;
  }
}

// dy, dlast_h, dlast_c, r, activated, cells, c0, peepholes, lengths -> dgates, dh0, dc0
std::unique_ptr<Kernel> make_lstm_gradient(const KernelRequest& request) {
  const auto absent = [&](std::size_t input) {
    return input >= request.inputs.size() || request.inputs[input].dtype == DType::kUndefined;
  };
  if (!is_row_major(request) || request.inputs[3].dtype != DType::kFloat32 ||
      !is_usual_lstm(request.node.attributes) || !absent(7) || !absent(8)) {
    return nullptr;
  }
  const Geometry g = geometry_of(request.node.attributes, request.inputs[4].shape, 4);
  const BackwardSteps<4> steps(g);
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
        const Sequence d{g, width, out[0].as<float>(), workspace.take(2 * g.samples * width)};
        const float* dy = data_or_null<float>(in, 0);
        const float* activated = in[4].as<float>();
        const float* cells = in[5].as<float>();
        const float* c0 = data_or_null<float>(in, 6);
        if (!c0) c0 = zero;
        steps.run(
            in[3].as<float>(), panels, data_or_null<float>(in, 1), data_or_null<float>(out, 1),
            [&](std::int64_t order) { return d[order]; }, [](const Tile&, float*) {},
            [&](std::int64_t order, const Tile& tile, const float* dh) {
              const std::int64_t step = g.step(order) * state;
              const float* before = order > 0 ? cells + g.step(order - 1) * state : c0;
              for (std::int64_t n = 0; n < tile.samples; ++n) {
                const std::int64_t unit = tile.at(n, g.hidden);
                const LstmGradientRow row{dh + n * kColumns,
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
        const Sequence h{g, g.hidden, out[0].as<float>(), workspace.take(2 * state)};
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
        const Sequence inner{g, width, data_or_null<float>(out, 1),
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
        const Sequence h{g, g.hidden, out[0].as<float>(), workspace.take(2 * state)};
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
        const Sequence d{g, g.hidden, out[0].as<float>(), workspace.take(2 * state)};
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

std::unique_ptr<Kernel> make_weight_gradient(const KernelRequest& request) {
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

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::recurrent
