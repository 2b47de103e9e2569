// Lstm, its gradient and that of its peepholes on GPUs: a launch for each step.
#include "ops/recurrent/recurrent_steps_cuda.h"

namespace pipetrain::recurrent {
namespace {

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
    const float input = value_of(w.gate, z[0] + peep(0, cell));
    const float forget = w.coupled ? 1 - input : value_of(w.gate, z[2] + peep(2, cell));
    const float candidate = value_of(w.cell, z[3]);
    cell = forget * cell + input * candidate;
    const float output = value_of(w.gate, z[1] + peep(1, cell));
    state = output * value_of(w.output, cell);
    activated[0] = input;
    activated[1] = output;
    activated[2] = forget;
    activated[3] = candidate;
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
  float dgate[4] = {};
  if (is_active(w.layer, t, u.n)) {
    const std::int64_t at = u.row * hidden + u.j;
    const auto peephole = [&](int gate) { return w.peepholes[gate * hidden + u.j]; };
    const auto activated = [&](int gate) { return w.activated[(u.row * 4 + gate) * hidden + u.j]; };
    const float total = dh + number_or_zero(w.dy, at);
    const float input = activated(0), output = activated(1), forget = activated(2),
                candidate = activated(3);
    const float activated_cell = value_of(w.output, w.cells[at]);
    const float before = before_step(w.layer, w.cells, w.c0, t, u.n, u.j);
    const float doutput = total * activated_cell * derivative_of(w.gate, output);
    float dcell = dc[u.state] + total * output * derivative_of(w.output, activated_cell);
    if (w.peepholes) dcell += doutput * peephole(1);
    const float dinput =
        dcell * (w.coupled ? candidate - before : candidate) * derivative_of(w.gate, input);
    const float dforget = w.coupled ? 0.0f : dcell * before * derivative_of(w.gate, forget);
    dgate[0] = dinput;
    dgate[1] = doutput;
    dgate[2] = dforget;
    dgate[3] = dcell * input * derivative_of(w.cell, candidate);
    dc[u.state] =
        dcell * forget + (w.peepholes ? dinput * peephole(0) + dforget * peephole(2) : 0.0f);
    carried[u.state] = 0;
  }
  for (int g = 0; g < 4; ++g) {
    mine[g * hidden] = dgate[g];
    if (w.dgates) w.dgates[(u.row * 4 + g) * hidden + u.j] = dgate[g];
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

}  // namespace pipetrain::recurrent
