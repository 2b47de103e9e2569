// Attention with float arithmetic and rotary embeddings (C++17: nvcc compiles this file). Much
// slower than a fused kernel on tensor cores, but it stores no queries × keys matrix either.
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::attention {

struct Walk {
  std::int64_t batch, head, step;
};

/// attention::Geometry as a kernel argument.
struct Heads {
  std::int64_t batch, heads, key_heads, queries, keys, width, value_width;
  Walk q, k, v, y;
  std::int64_t mask[4];
  float scale, softcap;
  bool causal, offset_from_lengths;
  std::int64_t offset, left, right;
};

/// Optional inputs of a score; all may be null.
struct Masks {
  ConstFloatView added;
  const std::uint8_t* shown = nullptr;
  const std::int64_t* lengths = nullptr;
};

/// Whether the kernels support vectors of these widths.
bool fits(const Heads& heads);
/// y and lse may be null.
void launch_attention(const Heads& heads, const Masks& masks, const ConstFloatView& q,
                      const ConstFloatView& k, const ConstFloatView& v, const FloatView& y,
                      const FloatView& lse, const CudaQueue& queue);
/// dq, dk, dv and dmask (batch, heads, queries, keys) may be null. `factors` is memory for a number
/// of each query.
void launch_attention_gradient(const Heads& heads, const Masks& masks, const ConstFloatView& dy,
                               const ConstFloatView& q, const ConstFloatView& k,
                               const ConstFloatView& v, const ConstFloatView& y,
                               const ConstFloatView& lse, const FloatView& dq, const FloatView& dk,
                               const FloatView& dv, const FloatView& dmask, float* factors,
                               const CudaQueue& queue);

}  // namespace pipetrain::attention

namespace pipetrain::rotary {

struct Turns {
  std::int64_t batch, heads, steps, width, pairs;
  std::int64_t batch_stride, head_stride, step_stride, table_batch_stride;
  bool interleaved, inverse;
};
void launch_rotary(const Turns& turns, const ConstFloatView& x, const ConstFloatView& cosine,
                   const ConstFloatView& sine, const FloatView& y, const CudaQueue& queue);

}  // namespace pipetrain::rotary
