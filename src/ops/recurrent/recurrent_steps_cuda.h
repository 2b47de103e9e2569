// What the kernels of recurrent layers on GPUs share, for .cu files.
//
// A block computes 16 hidden units of 16 samples, all gates of them, from the state that the launch
// before has left. So a step is one launch, and blocks wait for nothing but the launches before.
// Sums are in the order of what is summed over.
#pragma once

#include <cmath>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/recurrent/recurrent_launch_cuda.h"

namespace pipetrain::recurrent {

constexpr int kTile = 16;
constexpr int kThreads = kTile * kTile;

__device__ inline float unclipped_value(const GpuFunction& f, float x) {
  switch (f.kind) {
    case 0:  // Sigmoid
      return 1 / (1 + std::exp(-x));
    case 1:  // Tanh
      return std::tanh(x);
    case 2:  // Relu, of which NaN stays NaN
      return x < 0 ? 0 : x;
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

__device__ inline float value_of(const GpuFunction& f, float x) {
  const float low = x < -f.clip ? -f.clip : x;
  return unclipped_value(f, low > f.clip ? f.clip : low);
}

/// Whether y is the value, as any type has stored it.
__device__ inline bool is_stored(float y, float value) {
  return y == value || y == widened(narrowed(value, Stored::kBFloat16), Stored::kBFloat16) ||
         y == widened(narrowed(value, Stored::kFloat16), Stored::kFloat16);
}

/// From the activated value; the same rule as recurrent_steps_reference.h.
__device__ inline float derivative_of(const GpuFunction& f, float y) {
  if (std::isfinite(f.clip)) {
    const bool jumps = f.kind == 5;
    const float first = jumps ? -f.clip : unclipped_value(f, -f.clip);
    const float last = jumps ? f.clip : unclipped_value(f, f.clip);
    const float low = first < last ? first : last, high = first < last ? last : first;
    if (y <= low || y >= high || is_stored(y, low) || is_stored(y, high)) return 0;
  }
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
__device__ inline float before_step(const Layer& layer, const ConstFloatView& states,
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

inline std::int64_t state_of(const Layer& layer) { return layer.samples * layer.hidden; }
inline dim3 grid_of(const Layer& layer) {
  return dim3(static_cast<unsigned>((layer.hidden + kTile - 1) / kTile),
              static_cast<unsigned>((layer.samples + kTile - 1) / kTile));
}
inline std::int64_t step_at(const Layer& layer, std::int64_t order) {
  return layer.reverse ? layer.steps - 1 - order : order;
}

/// `from`, or zeros where it is absent; nothing where `to` is absent.
void copy_state(const Layer& layer, const ConstFloatView& from, const FloatView& to,
                const CudaQueue& queue);

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

}  // namespace pipetrain::recurrent
