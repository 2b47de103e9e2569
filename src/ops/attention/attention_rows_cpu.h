// Rows of attention scores, and the distribution of heads over threads: what the kernels of
// attention share. Include it from *_cpu.cpp files only.
#pragma once

#include <omp.h>

#include <algorithm>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/kernel/log_sum.h"
#include "ops/kernel/vector_math_cpu.h"

namespace pipetrain::attention {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

/// Whether the work is worth several threads.
inline bool is_parallel(const Geometry& g) {
  constexpr std::int64_t kParallelFlops = 1 << 18;
  return g.batch * g.heads * g.queries * g.keys * (g.width + g.value_width) > kParallelFlops;
}

/// The workspaces of a kernel's threads.
struct Lanes {
  std::int64_t floats;  // of each
  std::int64_t count;
  std::size_t bytes() const { return static_cast<std::size_t>(floats * count) * sizeof(float); }
};

/// One per thread, but no more than key heads; more than four only while all fit into 128 MiB.
inline Lanes lanes_for(const Geometry& g, std::int64_t floats) {
  constexpr std::int64_t kMostFloats = std::int64_t{1} << 25;  // of all threads together
  const std::int64_t affordable = std::max<std::int64_t>(4, kMostFloats / (floats + 1));
  const std::int64_t threads = std::min<std::int64_t>(omp_get_max_threads(), affordable);
  return {floats, std::max<std::int64_t>(1, std::min(threads, g.batch * g.key_heads))};
}

/// Calls work(thread's workspace, sample, key head) for every key head; heads are distributed over
/// the threads.
template <class Work>
void for_each_key_head(const Geometry& g, const Lanes& lanes, float* memory, Work work) {
  const std::int64_t count = g.batch * g.key_heads;
#pragma omp parallel if (is_parallel(g))
  {
    const std::int64_t lane = omp_get_thread_num();
    const std::int64_t step = std::min<std::int64_t>(lanes.count, omp_get_num_threads());
    for (std::int64_t i = lane; lane < step && i < count; i += step) {
      work(memory + lane * lanes.floats, i / g.key_heads, i % g.key_heads);
    }
  }
}

/// Hands out slices of a thread's workspace, at multiples of 64 bytes.
class WorkspaceSlices {
 public:
  explicit WorkspaceSlices(float* memory) : next_(memory) {}
  float* take(std::int64_t count) {
    float* out = next_;
    next_ += (count + 15) / 16 * 16;
    return out;
  }

 private:
  float* next_;
};

/// One query, and the keys of its scores.
struct ScoreRow {
  std::int64_t sample, head, query;
  std::int64_t first_key, keys;
  const std::int64_t* lengths;
};

/// The scores of a row from the matrix product: scaled, capped, masked; -inf for
/// masked keys. Returns the maximum. `ratios`, if wanted, gets score / softcap before the mask.
inline float finish_scores(const Geometry& g, const ScoreRow& row, const Tensor& mask,
                           float* __restrict scores, float* __restrict ratios) {
  const Geometry::Range range = g.visible(row.sample, row.query, row.lengths);
  const std::int64_t begin = std::clamp<std::int64_t>(range.begin - row.first_key, 0, row.keys);
  const std::int64_t end = std::clamp<std::int64_t>(range.end - row.first_key, begin, row.keys);
  std::fill_n(scores, begin, kHidden);
  std::fill(scores + end, scores + row.keys, kHidden);
  const auto scale = static_cast<float>(g.scale);
  if (g.softcap > 0) {
    const auto cap = static_cast<float>(g.softcap);
    const float inner = scale / cap;
#pragma omp simd
    for (std::int64_t j = begin; j < end; ++j) {
      const float ratio = vector_math::tanh(scores[j] * inner);
      if (ratios) ratios[j] = ratio;
      scores[j] = ratio * cap;
    }
  } else {
#pragma omp simd
    for (std::int64_t j = begin; j < end; ++j) scores[j] *= scale;
  }
  if (mask) {
    const std::int64_t first = g.mask[0] * row.sample + g.mask[1] * row.head +
                               g.mask[2] * row.query + g.mask[3] * row.first_key;
    if (mask.type.dtype == DType::kBool) {
      const auto* __restrict shown = mask.as<std::uint8_t>() + first;
      for (std::int64_t j = begin; j < end; ++j) {
        scores[j] = shown[g.mask[3] * j] ? scores[j] : kHidden;
      }
    } else if (g.mask[3] == 1) {
      const float* __restrict added = mask.as<float>() + first;
#pragma omp simd
      for (std::int64_t j = begin; j < end; ++j) scores[j] += added[j];
    } else {
      const float added = mask.as<float>()[first];
      for (std::int64_t j = begin; j < end; ++j) scores[j] += added;
    }
  }
  float maximum = kHidden;
#pragma omp simd reduction(max : maximum)
  for (std::int64_t j = begin; j < end; ++j) maximum = scores[j] > maximum ? scores[j] : maximum;
  return maximum;
}

/// Scores become e^(score - shift), all 0 when the shift is -inf, but for NaN; returns their sum.
inline float exponentiate(std::int64_t count, float shift, float* __restrict scores) {
  float sum = 0;
  if (shift == kHidden) {
    for (std::int64_t j = 0; j < count; ++j) {
      scores[j] = scores[j] != scores[j] ? scores[j] : 0.0f;
      sum += scores[j];
    }
    return sum;
  }
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < count; ++j) {
    const float power = vector_math::exp_nonpositive(scores[j] - shift);
    scores[j] = power;
    sum += power;
  }
  return sum;
}

/// What the sum of a row's powers divides by: nothing where every key is hidden. NaN stays NaN.
inline float factor_of(float sum) { return sum == 0 ? 0.0f : 1.0f / sum; }
/// The logarithm of the sum of e^score.
inline float log_sum(float maximum, float sum) {
  return sum > 0 ? maximum + vector_math::log(sum) : sum == 0 ? kHidden : sum;
}

/// Scores become attention weights again, in the backward pass.
inline void recompute_weights(std::int64_t count, float lse, float maximum,
                              float* __restrict scores) {
  if (!has_lost_digits(lse)) {
    exponentiate(count, lse, scores);
    return;
  }
  const float sum = exponentiate(count, maximum, scores);
  const float factor = factor_of(sum);
  for (std::int64_t j = 0; j < count; ++j) scores[j] *= factor;
}

/// Turns the gradients of one row's attention weights (dshares) into gradients of the scaled
/// scores, in place.
inline void score_gradient_row(std::int64_t count, float delta, float scale,
                               const float* __restrict shares, const float* __restrict ratios,
                               float* __restrict dscores, float* __restrict dmask,
                               std::int64_t mask_count) {
  // Separate loops: GCC reads a pointer that may be null with masked loads, which are very slow.
  if (!ratios && !dmask) {
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) dscores[j] = shares[j] * (dscores[j] - delta) * scale;
    return;
  }
#pragma omp simd
  for (std::int64_t j = 0; j < count; ++j) dscores[j] = shares[j] * (dscores[j] - delta);
  if (dmask) std::copy_n(dscores, std::min(count, mask_count), dmask);
  if (ratios) {
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) {
      const float slope = 1.0f - ratios[j] * ratios[j];
      dscores[j] *= shares[j] != 0.0f ? slope : 1.0f;
    }
  }
#pragma omp simd
  for (std::int64_t j = 0; j < count; ++j) dscores[j] *= scale;
}

inline Tensor at_or_empty(std::span<const Tensor> tensors, std::size_t index) {
  return index < tensors.size() ? tensors[index] : Tensor{};
}

}  // namespace pipetrain::attention
