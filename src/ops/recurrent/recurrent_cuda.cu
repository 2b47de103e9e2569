// Recurrent layers on GPUs: what is done once for all steps, which are copies of states and the
// gradient of the recurrent weights.
#include "ops/recurrent/recurrent_steps_cuda.h"

namespace pipetrain::recurrent {
namespace {

__global__ void copy_or_zero(ConstFloatView from, FloatView to, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    to[i] = number_or_zero(from, i);
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

}  // namespace

void copy_state(const Layer& layer, const ConstFloatView& from, const FloatView& to,
                const CudaQueue& queue) {
  if (to && state_of(layer) > 0)
    PT_LAUNCH(copy_or_zero, blocks_for(state_of(layer), queue), kBlock, queue.stream, from, to,
              state_of(layer));
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
