// Scaled dot-product attention: what the definition and the kernels share.
//
//   Attention(q, k, v[, mask, lengths]) -> y, lse
//     q, y: (B, H, T, D)    k: (B, G, S, D)    v: (B, G, S, E)    y: (B, H, T, E)
//     each may also be (B, T, H D), as linear layers produce it; y has the layout of q,
//     unless {y_rows} says otherwise
//     G key heads serve H / G query heads each
//     mask: broadcast to (B, H, T, S); floats are added to the scores, false masks a key
//     lengths: (B) int64, valid keys of each sample     lse: (B, H, T), ln Σ e^score
//   AttentionGrad(dy, q, k, v, mask, lengths, y, lse) -> dq, dk, dv, dmask (B, H, T, S)
//
//   score = softcap tanh(scale q k' / softcap) + mask; a query without visible keys gives 0
//   {causal: 1}: query i attends to keys up to i + offset; {left, right}: window size on each side
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "ops/kernel/kernel.h"
#include "ops/registry/registry.h"

namespace pipetrain::attention {

/// Strides of a tensor: the vector of one head at one position is at batch * b + head * h + step *
/// t.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t step = 0;

  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return batch * b + head * h + step * t;
  }
};

struct Geometry {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t width = 0;        // of q and k
  std::int64_t value_width = 0;  // of v and y
  Strides q, k, v, y;
  std::array<std::int64_t, 4> mask = {};  // strides; 0 along a broadcast axis
  double scale = 1;
  double softcap = 0;  // 0: none
  bool causal = false;
  bool offset_from_lengths = false;
  std::int64_t offset = 0;
  std::int64_t left = -1;   // visible keys to the left; -1: all
  std::int64_t right = -1;  // to the right

  struct Range {
    std::int64_t begin, end;
  };
  /// The keys that are visible to query i of sample b, before the mask is applied. `lengths` may be
  /// null.
  Range visible(std::int64_t b, std::int64_t i, const std::int64_t* lengths) const {
    const std::int64_t valid = lengths ? std::clamp<std::int64_t>(lengths[b], 0, keys) : keys;
    const std::int64_t position = i + (lengths && offset_from_lengths ? valid - queries : offset);
    Range out{0, valid};
    if (causal) out.end = std::min(out.end, position + 1);
    if (right >= 0) out.end = std::min(out.end, position + right + 1);
    if (left >= 0) out.begin = std::max<std::int64_t>(out.begin, position - left);
    out.end = std::max(out.end, out.begin);
    return out;
  }
};

/// Whether y is (B, T, H D).
bool in_rows(const Attributes& attributes, const TensorType& q);

/// Error (kModel) when the shapes are incompatible. `mask` may be kUndefined.
Geometry geometry_of(const Attributes& attributes, const TensorType& q, const TensorType& k,
                     const TensorType& v, const TensorType& mask);
/// The geometry of a node; `first` is the index of q among its inputs.
Geometry geometry_of(const KernelRequest& request, std::size_t first);

/// Whether the CPU's kernel of the node works on bfloat16 numbers directly.
bool multiplies_bfloat16(const KernelRequest& request);

std::span<const ImportRule> imports();
std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

}  // namespace pipetrain::attention
