// Recurrences: a block computes 16 units of 16 samples, all gates of them, from the state that the
// launch before has left; so a step is one launch, and nothing but the order of launches is waited
// for. Sums are in the order of what is summed over.
#include <cmath>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/recurrent/recurrent_launch_cuda.h"

namespace pipetrain::recurrent {
namespace {

constexpr int kTile = 16;
constexpr int kThreads = kTile * kTile;

__device__ float raw_value(const GpuFunction& f, float x) {
  switch (f.kind) {
    case 0:  // Sigmoid
      return 1 / (1 + std::exp(-x));
    case 1:  // Tanh
      return std::tanh(x);
    case 2:  // Relu
      return x > 0 ? x : 0;
    case 3:  // Affine
      return f.alpha * x + f.beta;
    case 4:  // LeakyRelu
      return x > 0 ? x : f.alpha * x;
    case 5:  // ThresholdedRelu
      return x > f.alpha ? x : 0;
    case 6:  // ScaledTanh
      return f.alpha * std::tanh(f.beta * x);
    case 7: {  // HardSigmoid
      const float y = f.alpha * x + f.beta;
      return y < 0 ? 0 : y > 1 ? 1 : y;
    }
    case 8:  // Elu
      return x > 0 ? x : f.alpha * std::expm1(x);
    case 9:  // Softsign
      return x / (1 + std::abs(x));
    default:  // Softplus
      return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x)));
  }
}

__device__ float value_of(const GpuFunction& f, float x) {
  const float low = x < -f.clip ? -f.clip : x;
  return raw_value(f, low > f.clip ? f.clip : low);
}

/// From the activated value.
__device__ float slope_of(const GpuFunction& f, float y) {
  if (std::isfinite(f.clip) && (y <= raw_value(f, -f.clip) || y >= raw_value(f, f.clip))) return 0;
  switch (f.kind) {
    case 0:
      return y * (1 - y);
    case 1:
      return 1 - y * y;
    case 2:
      return y > 0 ? 1 : 0;
    case 3:
      return f.alpha;
    case 4:
      return y > 0 ? 1 : f.alpha;
    case 5:
      return y != 0 ? 1 : 0;
    case 6:
      return f.beta * (f.alpha - y * y / f.alpha);
    case 7:
      return y > 0 && y < 1 ? f.alpha : 0;
    case 8:
      return y > 0 ? 1 : y + f.alpha;
    case 9:
      return (1 - std::abs(y)) * (1 - std::abs(y));
    default:
      return -std::expm1(-y);
  }
}

__device__ __forceinline__ bool is_active(const Layer& layer, std::int64_t t, std::int64_t n) {
  return !layer.lengths || t < layer.lengths[n];
}

/// An element of the state before step t: from the sequence of states, or the initial one.
__device__ float before_step(const Layer& layer, const ConstFloatView& states,
                             const ConstFloatView& initial, std::int64_t t, std::int64_t n,
                             std::int64_t j) {
  const bool first =
      layer.reverse ? t + 1 == layer.steps || (layer.lengths && t + 1 == layer.lengths[n]) : t == 0;
  if (first) return initial ? initial[n * layer.hidden + j] : 0.0f;
  return states[((layer.reverse ? t + 1 : t - 1) * layer.samples + n) * layer.hidden + j];
}

/// What a thread works on.
struct Unit {
  std::int64_t n, j;
  bool inside;
  std::int64_t state, row;  // of (samples, hidden), and of (steps, samples, …) at a step
};
__device__ __forceinline__ Unit unit_of(const Layer& layer, std::int64_t t) {
  Unit u;
  u.j = static_cast<std::int64_t>(blockIdx.x) * kTile + threadIdx.x % kTile;
  u.n = static_cast<std::int64_t>(blockIdx.y) * kTile + threadIdx.x / kTile;
  u.inside = u.j < layer.hidden && u.n < layer.samples;
  u.state = u.n * layer.hidden + u.j;
  u.row = t * layer.samples + u.n;
  return u;
}

/// Where an element of the recurrent weights lies: by gate, unit, and what is summed over.
struct Weights {
  ConstFloatView r;
  std::int64_t gate_step, unit_step, depth_step;
};

/// sums[g] = Σ_k a[n, k] w[g, j, k], k < depth. All threads of the block must come here.
template <int kGates>
__device__ void add_products(const Layer& layer, const float* a, std::int64_t stride,
                             std::int64_t depth, const Weights& w, float (&sums)[kGates]) {
  __shared__ float left[kTile][kTile + 1];
  __shared__ float right[kGates][kTile][kTile + 1];
  const int low = threadIdx.x % kTile, high = threadIdx.x / kTile;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.y) * kTile + high;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;
  // Neighbouring threads read neighbours.
  const bool along_depth = w.depth_step == 1;
  const int unit = along_depth ? high : low, part = along_depth ? low : high;
  for (std::int64_t k = 0; k < depth; k += kTile) {
    left[high][low] = n < layer.samples && k + low < depth ? a[n * stride + k + low] : 0.0f;
    for (int g = 0; g < kGates; ++g) {
      const bool inside = first + unit < layer.hidden && k + part < depth;
      right[g][unit][part] =
          inside ? w.r[g * w.gate_step + (first + unit) * w.unit_step + (k + part) * w.depth_step]
                 : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < kTile; ++i) {
      const float x = left[high][i];
      for (int g = 0; g < kGates; ++g) sums[g] += x * right[g][low][i];
    }
    __syncthreads();  // before the next parts lie there
  }
}

/// From a state to all gates of the next.
__device__ __forceinline__ Weights forward_weights(const Layer& layer, const ConstFloatView& r) {
  return {r, layer.hidden * layer.hidden, layer.hidden, 1};
}
/// From the gradients of gates to a state's.
__device__ __forceinline__ Weights backward_weights(const Layer& layer, const ConstFloatView& r) {
  return {r, 0, 1, layer.hidden};
}

__device__ __forceinline__ float number_or_zero(const ConstFloatView& numbers, std::int64_t i) {
  return numbers ? numbers[i] : 0.0f;
}

__global__ void copy_or_zero(ConstFloatView from, FloatView to, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    to[i] = number_or_zero(from, i);
}

__global__ void lstm_step(LstmForward w, std::int64_t t, const float* h, float* next, float* c) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float z[4] = {};
  add_products(w.layer, h, hidden, hidden, forward_weights(w.layer, w.r), z);
  if (!u.inside) return;
  float state = h[u.state], cell = c[u.state];
  float activated[4] = {};
  const bool active = is_active(w.layer, t, u.n);
  if (active) {
    const auto peep = [&](int gate, float of) {
      return w.peepholes ? w.peepholes[gate * hidden + u.j] * of : 0.0f;
    };
    for (int g = 0; g < 4; ++g) z[g] += w.gates[(u.row * 4 + g) * hidden + u.j];
    const float forget = value_of(w.gate, z[2] + peep(2, cell));
    const float input = w.coupled ? 1 - forget : value_of(w.gate, z[0] + peep(0, cell));
    const float fresh = value_of(w.cell, z[3]);
    cell = forget * cell + input * fresh;
    const float output = value_of(w.gate, z[1] + peep(1, cell));
    state = output * value_of(w.output, cell);
    activated[0] = input;
    activated[1] = output;
    activated[2] = forget;
    activated[3] = fresh;
  }
  next[u.state] = state;
  c[u.state] = cell;
  if (w.y) w.y[u.row * hidden + u.j] = active ? state : 0.0f;
  if (w.cells) w.cells[u.row * hidden + u.j] = cell;
  for (int g = 0; w.activated && g < 4; ++g)
    w.activated[(u.row * 4 + g) * hidden + u.j] = activated[g];
}

/// d: gradients of the gates at this step (samples, 4 hidden); `later`: at the step computed
/// before, null at the first. `carried`: what a state's gradient has beside the product.
/// t < 0: the initial state's gradient is all that is left.
__global__ void lstm_back_step(LstmBackward w, std::int64_t t, const float* later, float* d,
                               float* carried, float* dc) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float sum[1] = {};
  if (later)
    add_products(w.layer, later, 4 * hidden, 4 * hidden, backward_weights(w.layer, w.r), sum);
  if (!u.inside) return;
  const float dh = carried[u.state] + sum[0];
  carried[u.state] = dh;
  if (t < 0) return;
  float* const mine = d + u.n * 4 * hidden + u.j;
  float slopes[4] = {};
  if (is_active(w.layer, t, u.n)) {
    const std::int64_t at = u.row * hidden + u.j;
    const auto peephole = [&](int gate) { return w.peepholes[gate * hidden + u.j]; };
    const auto activated = [&](int gate) { return w.activated[(u.row * 4 + gate) * hidden + u.j]; };
    const float total = dh + number_or_zero(w.dy, at);
    const float input = activated(0), output = activated(1), forget = activated(2),
                fresh = activated(3);
    const float squashed = value_of(w.output, w.cells[at]);
    const float before = before_step(w.layer, w.cells, w.c0, t, u.n, u.j);
    const float doutput = total * squashed * slope_of(w.gate, output);
    float dcell = dc[u.state] + total * output * slope_of(w.output, squashed);
    if (w.peepholes) dcell += doutput * peephole(1);
    const float dinput = w.coupled ? 0.0f : dcell * fresh * slope_of(w.gate, input);
    const float dforget = dcell * (w.coupled ? before - fresh : before) * slope_of(w.gate, forget);
    slopes[0] = dinput;
    slopes[1] = doutput;
    slopes[2] = dforget;
    slopes[3] = dcell * input * slope_of(w.cell, fresh);
    dc[u.state] =
        dcell * forget + (w.peepholes ? dinput * peephole(0) + dforget * peephole(2) : 0.0f);
    carried[u.state] = 0;
  }
  for (int g = 0; g < 4; ++g) {
    mine[g * hidden] = slopes[g];
    if (w.dgates) w.dgates[(u.row * 4 + g) * hidden + u.j] = slopes[g];
  }
}

/// A block for each unit.
__global__ void peephole_gradient(Layer layer, ConstFloatView dgates, ConstFloatView cells,
                                  ConstFloatView c0, FloatView dpeepholes) {
  const std::int64_t j = blockIdx.x, hidden = layer.hidden;
  float sums[3] = {};
  for (std::int64_t row = threadIdx.x; row < layer.steps * layer.samples; row += kBlock) {
    const std::int64_t t = row / layer.samples, n = row % layer.samples;
    if (!is_active(layer, t, n)) continue;
    const auto d = [&](int gate) { return dgates[(row * 4 + gate) * hidden + j]; };
    const float before = before_step(layer, cells, c0, t, n, j);
    sums[0] += d(0) * before;
    sums[1] += d(1) * cells[row * hidden + j];
    sums[2] += d(2) * before;
  }
  for (int g = 0; g < 3; ++g) {
    const float sum = over_block<kBlock>(sums[g], SumOf());
    if (threadIdx.x == 0) dpeepholes[g * hidden + j] = sum;
  }
}

__device__ __forceinline__ void write_gru(const GruForward& w, const Unit& u, bool active,
                                          float update, float reset, float fresh, float state) {
  const std::int64_t hidden = w.layer.hidden;
  if (w.y) w.y[u.row * hidden + u.j] = active ? state : 0.0f;
  if (!w.activated) return;
  w.activated[u.row * 3 * hidden + u.j] = active ? update : 0.0f;
  w.activated[(u.row * 3 + 1) * hidden + u.j] = active ? reset : 0.0f;
  w.activated[(u.row * 3 + 2) * hidden + u.j] = active ? fresh : 0.0f;
}

/// The reset gate behind the product.
__global__ void gru_step_after(GruForward w, std::int64_t t, const float* h, float* next) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float z[3] = {};
  add_products(w.layer, h, hidden, hidden, forward_weights(w.layer, w.r), z);
  if (!u.inside) return;
  const float before = h[u.state];
  const bool active = is_active(w.layer, t, u.n);
  float state = before, update = 0, reset = 0, fresh = 0, part = 0;
  if (active) {
    const auto gate = [&](int g) { return w.gates[(u.row * 3 + g) * hidden + u.j]; };
    update = value_of(w.gate, gate(0) + z[0]);
    reset = value_of(w.gate, gate(1) + z[1]);
    part = z[2] + number_or_zero(w.bias, u.j);
    fresh = value_of(w.fresh, gate(2) + reset * part);
    state = (1 - update) * fresh + update * before;
  }
  next[u.state] = state;
  if (w.parts) w.parts[u.row * hidden + u.j] = part;
  write_gru(w, u, active, update, reset, fresh, state);
}

/// The reset gate before the product: both gates first, …
__global__ void gru_gates(GruForward w, std::int64_t t, const float* h, float* updates,
                          float* parts) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float z[2] = {};
  add_products(w.layer, h, hidden, hidden, forward_weights(w.layer, w.r), z);
  if (!u.inside) return;
  const bool active = is_active(w.layer, t, u.n);
  float update = 0, reset = 0;
  if (active) {
    update = value_of(w.gate, w.gates[u.row * 3 * hidden + u.j] + z[0]);
    reset = value_of(w.gate, w.gates[(u.row * 3 + 1) * hidden + u.j] + z[1]);
  }
  const float part = active ? reset * h[u.state] : 0.0f;
  updates[u.state] = update;
  parts[u.state] = part;
  if (w.parts) w.parts[u.row * hidden + u.j] = part;
  if (w.activated) w.activated[(u.row * 3 + 1) * hidden + u.j] = reset;
}
/// … then what is fresh.
__global__ void gru_step_before(GruForward w, std::int64_t t, const float* h, const float* updates,
                                const float* parts, float* next) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float z[1] = {};
  Weights weights = forward_weights(w.layer, w.r + 2 * hidden * hidden);
  add_products(w.layer, parts, hidden, hidden, weights, z);
  if (!u.inside) return;
  const float before = h[u.state], update = updates[u.state];
  const bool active = is_active(w.layer, t, u.n);
  float state = before, fresh = 0;
  if (active) {
    fresh = value_of(w.fresh, w.gates[(u.row * 3 + 2) * hidden + u.j] + z[0]);
    state = (1 - update) * fresh + update * before;
  }
  next[u.state] = state;
  if (w.y) w.y[u.row * hidden + u.j] = active ? state : 0.0f;
  if (!w.activated) return;
  w.activated[u.row * 3 * hidden + u.j] = update;
  w.activated[(u.row * 3 + 2) * hidden + u.j] = fresh;
}

/// As lstm_back_step. d: of what the state is multiplied with, (samples, 3 hidden).
__global__ void gru_back_step(GruBackward w, std::int64_t t, const float* later, float* d,
                              float* carried) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float sum[1] = {};
  if (later)
    add_products(w.layer, later, 3 * hidden, (w.after ? 3 : 2) * hidden,
                 backward_weights(w.layer, w.r), sum);
  if (!u.inside) return;
  const float dh = carried[u.state] + sum[0];
  carried[u.state] = dh;
  if (t < 0) return;
  const bool active = is_active(w.layer, t, u.n);
  const std::int64_t at = u.row * hidden + u.j;
  float dupdate = 0, dreset = 0, dfresh = 0, inner = 0;
  if (active) {
    const auto activated = [&](int gate) { return w.activated[(u.row * 3 + gate) * hidden + u.j]; };
    const float total = dh + number_or_zero(w.dy, at);
    const float update = activated(0), reset = activated(1), fresh = activated(2);
    const float before = before_step(w.layer, w.y, w.h0, t, u.n, u.j);
    dupdate = total * (before - fresh) * slope_of(w.gate, update);
    dfresh = total * (1 - update) * slope_of(w.fresh, fresh);
    carried[u.state] = total * update;
    if (w.after) {
      inner = dfresh * reset;
      dreset = dfresh * w.parts[at] * slope_of(w.gate, reset);
    }
  }
  float* const mine = d + u.n * 3 * hidden + u.j;
  mine[0] = dupdate;
  mine[hidden] = dreset;
  mine[2 * hidden] = w.after ? inner : dfresh;
  if (w.dgates) {
    w.dgates[u.row * 3 * hidden + u.j] = dupdate;
    w.dgates[(u.row * 3 + 1) * hidden + u.j] = dreset;
    w.dgates[(u.row * 3 + 2) * hidden + u.j] = dfresh;
  }
  if (w.drecurrent) {
    w.drecurrent[u.row * 3 * hidden + u.j] = dupdate;
    w.drecurrent[(u.row * 3 + 1) * hidden + u.j] = dreset;
    w.drecurrent[(u.row * 3 + 2) * hidden + u.j] = w.after ? inner : dfresh;
  }
}

/// With the reset gate before the product: through reset * h.
__global__ void gru_back_reset(GruBackward w, std::int64_t t, float* d, float* carried) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float sum[1] = {};
  add_products(w.layer, d + 2 * hidden, 3 * hidden, hidden,
               backward_weights(w.layer, w.r + 2 * hidden * hidden), sum);
  if (!u.inside || !is_active(w.layer, t, u.n)) return;
  const float reset = w.activated[(u.row * 3 + 1) * hidden + u.j];
  const float before = before_step(w.layer, w.y, w.h0, t, u.n, u.j);
  const float dreset = sum[0] * before * slope_of(w.gate, reset);
  carried[u.state] += sum[0] * reset;
  d[(u.n * 3 + 1) * hidden + u.j] = dreset;
  if (w.dgates) w.dgates[(u.row * 3 + 1) * hidden + u.j] = dreset;
  if (w.drecurrent) w.drecurrent[(u.row * 3 + 1) * hidden + u.j] = dreset;
}

__global__ void rnn_step(RnnForward w, std::int64_t t, const float* h, float* next) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float z[1] = {};
  add_products(w.layer, h, hidden, hidden, forward_weights(w.layer, w.r), z);
  if (!u.inside) return;
  const std::int64_t at = u.row * hidden + u.j;
  const bool active = is_active(w.layer, t, u.n);
  const float state = active ? value_of(w.function, w.gates[at] + z[0]) : h[u.state];
  next[u.state] = state;
  if (w.y) w.y[at] = active ? state : 0.0f;
}

__global__ void rnn_back_step(RnnBackward w, std::int64_t t, const float* later, float* d,
                              float* carried) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float sum[1] = {};
  if (later) add_products(w.layer, later, hidden, hidden, backward_weights(w.layer, w.r), sum);
  if (!u.inside) return;
  const float dh = carried[u.state] + sum[0];
  carried[u.state] = dh;
  if (t < 0) return;
  const std::int64_t at = u.row * hidden + u.j;
  float slope = 0;
  if (is_active(w.layer, t, u.n)) {
    slope = (dh + number_or_zero(w.dy, at)) * slope_of(w.function, w.y[at]);
    carried[u.state] = 0;
  }
  d[u.state] = slope;
  if (w.dgates) w.dgates[at] = slope;
}

/// dr[row, k] = Σ over steps and samples of dgates[row] * state before [k].
__global__ void weight_gradient(Layer layer, std::int64_t rows, ConstFloatView dgates,
                                ConstFloatView before, ConstFloatView parts, FloatView dr) {
  __shared__ float left[kTile][kTile + 1], right[kTile][kTile + 1];
  const int low = threadIdx.x % kTile, high = threadIdx.x / kTile;
  const std::int64_t hidden = layer.hidden, depth = layer.steps * layer.samples;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  // A tile of rows may begin in one gate and end in the next, whose state may be another.
  float sum = 0;
  for (int pass = 0; pass < (parts ? 2 : 1); ++pass) {
    float mine = 0;
    for (std::int64_t m = 0; m < depth; m += kTile) {
      const std::int64_t at = m + high, t = at / layer.samples, n = at % layer.samples;
      const bool active = at < depth && is_active(layer, t, n);
      left[high][low] = active && row + low < rows ? dgates[at * rows + row + low] : 0.0f;
      const std::int64_t k = column + low;
      float state = 0;
      if (active && k < hidden)
        state = pass == 0 ? before[at * hidden + k] : parts[at * hidden + k];
      right[high][low] = state;
      __syncthreads();
      for (int i = 0; i < kTile; ++i) mine += left[i][high] * right[i][low];
      __syncthreads();  // before the next parts lie there
    }
    const bool last_gate = row + high >= rows - hidden;
    if (pass == (parts && last_gate ? 1 : 0)) sum = mine;
  }
  if (row + high < rows && column + low < hidden) dr[(row + high) * hidden + column + low] = sum;
}

__global__ void states_before(Layer layer, ConstFloatView y, ConstFloatView h0, FloatView before) {
  const std::int64_t count = layer.steps * layer.samples * layer.hidden;
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const std::int64_t j = i % layer.hidden, n = i / layer.hidden % layer.samples;
    const std::int64_t t = i / layer.hidden / layer.samples;
    before[i] = is_active(layer, t, n) ? before_step(layer, y, h0, t, n, j) : 0.0f;
  }
}

std::int64_t state_of(const Layer& layer) { return layer.samples * layer.hidden; }
dim3 grid_of(const Layer& layer) {
  return dim3(static_cast<unsigned>((layer.hidden + kTile - 1) / kTile),
              static_cast<unsigned>((layer.samples + kTile - 1) / kTile));
}
std::int64_t step_at(const Layer& layer, std::int64_t order) {
  return layer.reverse ? layer.steps - 1 - order : order;
}

void copy_state(const Layer& layer, const ConstFloatView& from, const FloatView& to,
                const CudaQueue& queue) {
  if (to && state_of(layer) > 0)
    PT_LAUNCH(copy_or_zero, blocks_for(state_of(layer), queue), kBlock, queue.stream, from, to,
              state_of(layer));
}

/// Calls step(t, later, d) from the last step computed to the first, with the two buffers of `size`
/// floats in turns, and at the end step(-1, later, null).
template <class Step>
void backward(const Layer& layer, float* buffers, std::int64_t size, Step step) {
  const float* later = nullptr;
  for (std::int64_t order = layer.steps; order-- > 0;) {
    float* const d = buffers + (order % 2) * size;
    step(step_at(layer, order), later, d);
    later = d;
  }
  step(-1, later, nullptr);
}

}  // namespace

void launch_lstm(const LstmForward& work, const CudaQueue& queue) {
  const std::int64_t size = state_of(work.layer);
  if (size == 0) return;
  float *h = work.workspace, *next = h + size, *c = next + size;
  copy_state(work.layer, work.h0, h, queue);
  copy_state(work.layer, work.c0, c, queue);
  for (std::int64_t order = 0; order < work.layer.steps; ++order) {
    PT_LAUNCH(lstm_step, grid_of(work.layer), kThreads, queue.stream, work,
              step_at(work.layer, order), h, next, c);
    float* const last = h;
    h = next;
    next = last;
  }
  copy_state(work.layer, h, work.last_h, queue);
  copy_state(work.layer, c, work.last_c, queue);
}

void launch_lstm_gradient(const LstmBackward& work, const CudaQueue& queue) {
  const std::int64_t size = state_of(work.layer);
  if (size == 0) return;
  float *carried = work.workspace, *dc = carried + size;
  copy_state(work.layer, work.dlast_h, carried, queue);
  copy_state(work.layer, work.dlast_c, dc, queue);
  backward(work.layer, dc + size, 4 * size, [&](std::int64_t t, const float* later, float* d) {
    PT_LAUNCH(lstm_back_step, grid_of(work.layer), kThreads, queue.stream, work, t, later, d,
              carried, dc);
  });
  copy_state(work.layer, carried, work.dh0, queue);
  copy_state(work.layer, dc, work.dc0, queue);
}

void launch_peephole_gradient(const Layer& layer, const ConstFloatView& dgates,
                              const ConstFloatView& cells, const ConstFloatView& c0,
                              const FloatView& dpeepholes, const CudaQueue& queue) {
  PT_LAUNCH(peephole_gradient, static_cast<unsigned>(layer.hidden), kBlock, queue.stream, layer,
            dgates, cells, c0, dpeepholes);
}

void launch_gru(const GruForward& work, const CudaQueue& queue) {
  const std::int64_t size = state_of(work.layer);
  if (size == 0) return;
  float *h = work.workspace, *next = h + size, *updates = next + size, *parts = updates + size;
  copy_state(work.layer, work.h0, h, queue);
  for (std::int64_t order = 0; order < work.layer.steps; ++order) {
    const std::int64_t t = step_at(work.layer, order);
    if (work.after) {
      PT_LAUNCH(gru_step_after, grid_of(work.layer), kThreads, queue.stream, work, t, h, next);
    } else {
      PT_LAUNCH(gru_gates, grid_of(work.layer), kThreads, queue.stream, work, t, h, updates, parts);
      PT_LAUNCH(gru_step_before, grid_of(work.layer), kThreads, queue.stream, work, t, h, updates,
                parts, next);
    }
    float* const last = h;
    h = next;
    next = last;
  }
  copy_state(work.layer, h, work.last_h, queue);
}

void launch_gru_gradient(const GruBackward& work, const CudaQueue& queue) {
  const std::int64_t size = state_of(work.layer);
  if (size == 0) return;
  float* const carried = work.workspace;
  copy_state(work.layer, work.dlast_h, carried, queue);
  backward(work.layer, carried + size, 3 * size, [&](std::int64_t t, const float* later, float* d) {
    PT_LAUNCH(gru_back_step, grid_of(work.layer), kThreads, queue.stream, work, t, later, d,
              carried);
    if (t >= 0 && !work.after)
      PT_LAUNCH(gru_back_reset, grid_of(work.layer), kThreads, queue.stream, work, t, d, carried);
  });
  copy_state(work.layer, carried, work.dh0, queue);
}

void launch_rnn(const RnnForward& work, const CudaQueue& queue) {
  const std::int64_t size = state_of(work.layer);
  if (size == 0) return;
  float *h = work.workspace, *next = h + size;
  copy_state(work.layer, work.h0, h, queue);
  for (std::int64_t order = 0; order < work.layer.steps; ++order) {
    PT_LAUNCH(rnn_step, grid_of(work.layer), kThreads, queue.stream, work,
              step_at(work.layer, order), h, next);
    float* const last = h;
    h = next;
    next = last;
  }
  copy_state(work.layer, h, work.last_h, queue);
}

void launch_rnn_gradient(const RnnBackward& work, const CudaQueue& queue) {
  const std::int64_t size = state_of(work.layer);
  if (size == 0) return;
  float* const carried = work.workspace;
  copy_state(work.layer, work.dlast_h, carried, queue);
  backward(work.layer, carried + size, size, [&](std::int64_t t, const float* later, float* d) {
    PT_LAUNCH(rnn_back_step, grid_of(work.layer), kThreads, queue.stream, work, t, later, d,
              carried);
  });
  copy_state(work.layer, carried, work.dh0, queue);
}

void launch_recurrent_weight_gradient(const Layer& layer, std::int64_t gates,
                                      const ConstFloatView& dgates, const ConstFloatView& before,
                                      const ConstFloatView& parts, const FloatView& dr,
                                      const CudaQueue& queue) {
  const std::int64_t rows = gates * layer.hidden;
  const dim3 grid(static_cast<unsigned>((layer.hidden + kTile - 1) / kTile),
                  static_cast<unsigned>((rows + kTile - 1) / kTile));
  PT_LAUNCH(weight_gradient, grid, kThreads, queue.stream, layer, rows, dgates, before, parts, dr);
}

void launch_states_before(const Layer& layer, const ConstFloatView& y, const ConstFloatView& h0,
                          const FloatView& before, const CudaQueue& queue) {
  const std::int64_t count = layer.steps * state_of(layer);
  if (count > 0)
    PT_LAUNCH(states_before, blocks_for(count, queue), kBlock, queue.stream, layer, y, h0, before);
}

}  // namespace pipetrain::recurrent
