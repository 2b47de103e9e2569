// Rnn and its gradient on GPUs: a launch for each step.
#include "ops/recurrent/recurrent_steps_cuda.h"

namespace pipetrain::recurrent {
namespace {

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
  float dgate = 0;
  if (is_active(w.layer, t, u.n)) {
    dgate = (dh + number_or_zero(w.dy, at)) * derivative_of(w.function, w.y[at]);
    carried[u.state] = 0;
  }
  d[u.state] = dgate;
  if (w.dgates) w.dgates[at] = dgate;
}

}  // namespace

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

}  // namespace pipetrain::recurrent
