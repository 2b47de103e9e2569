// Gru and its gradient on GPUs: a launch for each step, or two with the reset gate before the
// product.
#include "ops/recurrent/recurrent_steps_cuda.h"

namespace pipetrain::recurrent {
namespace {

__device__ __forceinline__ void write_gru(const GruForward& w, const Unit& u, bool active,
                                          float update, float reset, float candidate, float state) {
  const std::int64_t hidden = w.layer.hidden;
  if (w.y) w.y[u.row * hidden + u.j] = active ? state : 0.0f;
  if (!w.activated) return;
  w.activated[u.row * 3 * hidden + u.j] = active ? update : 0.0f;
  w.activated[(u.row * 3 + 1) * hidden + u.j] = active ? reset : 0.0f;
  w.activated[(u.row * 3 + 2) * hidden + u.j] = active ? candidate : 0.0f;
}

/// The reset gate after the product.
__global__ void gru_step_after(GruForward w, std::int64_t t, const float* h, float* next) {
  const Unit u = unit_of(w.layer, t);
  const std::int64_t hidden = w.layer.hidden;
  float z[3] = {};
  add_products(w.layer, h, hidden, hidden, forward_weights(w.layer, w.r), z);
  if (!u.inside) return;
  const float before = h[u.state];
  const bool active = is_active(w.layer, t, u.n);
  float state = before, update = 0, reset = 0, candidate = 0, part = 0;
  if (active) {
    const auto gate = [&](int g) { return w.gates[(u.row * 3 + g) * hidden + u.j]; };
    update = value_of(w.gate, gate(0) + z[0]);
    reset = value_of(w.gate, gate(1) + z[1]);
    part = z[2] + number_or_zero(w.bias, u.j);
    candidate = value_of(w.candidate, gate(2) + reset * part);
    state = (1 - update) * candidate + update * before;
  }
  next[u.state] = state;
  if (w.parts) w.parts[u.row * hidden + u.j] = part;
  write_gru(w, u, active, update, reset, candidate, state);
}

/// The reset gate before the product: first both gates, …
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
/// … then the candidate state.
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
  float state = before, candidate = 0;
  if (active) {
    candidate = value_of(w.candidate, w.gates[(u.row * 3 + 2) * hidden + u.j] + z[0]);
    state = (1 - update) * candidate + update * before;
  }
  next[u.state] = state;
  if (w.y) w.y[u.row * hidden + u.j] = active ? state : 0.0f;
  if (!w.activated) return;
  w.activated[u.row * 3 * hidden + u.j] = update;
  w.activated[(u.row * 3 + 2) * hidden + u.j] = candidate;
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
  float dupdate = 0, dreset = 0, dcandidate = 0, inner = 0;
  if (active) {
    const auto activated = [&](int gate) { return w.activated[(u.row * 3 + gate) * hidden + u.j]; };
    const float total = dh + number_or_zero(w.dy, at);
    const float update = activated(0), reset = activated(1), candidate = activated(2);
    const float before = before_step(w.layer, w.y, w.h0, t, u.n, u.j);
    dupdate = total * (before - candidate) * derivative_of(w.gate, update);
    dcandidate = total * (1 - update) * derivative_of(w.candidate, candidate);
    carried[u.state] = total * update;
    if (w.after) {
      inner = dcandidate * reset;
      dreset = dcandidate * w.parts[at] * derivative_of(w.gate, reset);
    }
  }
  float* const mine = d + u.n * 3 * hidden + u.j;
  mine[0] = dupdate;
  mine[hidden] = dreset;
  mine[2 * hidden] = w.after ? inner : dcandidate;
  if (w.dgates) {
    w.dgates[u.row * 3 * hidden + u.j] = dupdate;
    w.dgates[(u.row * 3 + 1) * hidden + u.j] = dreset;
    w.dgates[(u.row * 3 + 2) * hidden + u.j] = dcandidate;
  }
  if (w.drecurrent) {
    w.drecurrent[u.row * 3 * hidden + u.j] = dupdate;
    w.drecurrent[(u.row * 3 + 1) * hidden + u.j] = dreset;
    w.drecurrent[(u.row * 3 + 2) * hidden + u.j] = w.after ? inner : dcandidate;
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
  const float dreset = sum[0] * before * derivative_of(w.gate, reset);
  carried[u.state] += sum[0] * reset;
  d[(u.n * 3 + 1) * hidden + u.j] = dreset;
  if (w.dgates) w.dgates[(u.row * 3 + 1) * hidden + u.j] = dreset;
  if (w.drecurrent) w.drecurrent[(u.row * 3 + 1) * hidden + u.j] = dreset;
}

}  // namespace

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

}  // namespace pipetrain::recurrent
