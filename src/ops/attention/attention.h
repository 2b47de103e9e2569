// Scaled dot-product attention: what the definition and the kernels share.
//
//   Attention(q, k, v[, mask, lengths]) -> y, lse
//     q, y: (B, H, T, D)    k: (B, G, S, D)    v: (B, G, S, E)    y: (B, H, T, E)
//     each may also stand in rows, (B, T, H D), as the linear layers leave it; y stands as q does,
//     unless {y_rows} says otherwise
//     G key heads serve H / G query heads each
//     mask: broadcast to (B, H, T, S); numbers are added to the scores, false hides a key
//     lengths: (B) int64, keys of a sample that count     lse: (B, H, T), ln Σ e^score
//   AttentionGrad(dy, q, k, v, mask, lengths, y, lse) -> dq, dk, dv, dmask (B, H, T, S)
//
//   score = softcap tanh(scale q k' / softcap) + mask; a query that sees no key gives 0
//   {causal: 1}: query i sees keys up to i + offset; {left, right}: only that many to each side
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "ops/kernel/kernel.h"
#include "ops/registry/registry.h"

namespace pipetrain::attention {

/// Where a tensor's vector of one head at one position begins: batch * b + head * h + step * t.
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
  std::int64_t left = -1;   // keys to the left that are seen; -1: all
  std::int64_t right = -1;  // to the right

  struct Range {
    std::int64_t begin, end;
  };
  /// The keys that query i of sample b may see, the mask aside. `lengths` may be null.
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

/// Whether y stands in rows.
bool in_rows(const Attributes& attributes, const TensorType& q);

/// Error (kModel) when shapes do not go together. `mask` may be kUndefined.
Geometry geometry_of(const Attributes& attributes, const TensorType& q, const TensorType& k,
                     const TensorType& v, const TensorType& mask);
/// Of a node; `first` is the index of q among its inputs.
Geometry geometry_of(const KernelRequest& request, std::size_t first);

std::span<const ImportRule> imports();
std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

}  // namespace pipetrain::attention
