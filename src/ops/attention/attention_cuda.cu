// A block for each query (forward, dq) or each key (dk, dv); its threads are distributed over keys
// (queries), then over the elements of a vector, so that the order of every sum is fixed.
#include <cmath>
#include <limits>

#include "ops/attention/attention_launch_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/kernel/log_sum.h"

namespace pipetrain {
namespace attention {
namespace {

constexpr int kThreads = 128;
constexpr int kWidest = 256;

__device__ __forceinline__ std::int64_t place(const Walk& walk, std::int64_t b, std::int64_t h,
                                              std::int64_t t) {
  return walk.batch * b + walk.head * h + walk.step * t;
}

struct Range {
  std::int64_t begin, end;
};

/// The keys that are visible to query i of sample b, before the mask is applied
/// (attention::Geometry::visible).
__device__ Range visible(const Heads& g, const Masks& masks, std::int64_t b, std::int64_t i) {
  std::int64_t valid = g.keys;
  if (masks.lengths) {
    valid = masks.lengths[b] < 0 ? 0 : masks.lengths[b];
    valid = valid > g.keys ? g.keys : valid;
  }
  const std::int64_t position =
      i + (masks.lengths && g.offset_from_lengths ? valid - g.queries : g.offset);
  Range out{0, valid};
  if (g.causal && position + 1 < out.end) out.end = position + 1;
  if (g.right >= 0 && position + g.right + 1 < out.end) out.end = position + g.right + 1;
  if (g.left >= 0 && position - g.left > out.begin) out.begin = position - g.left;
  if (out.end < out.begin) out.end = out.begin;
  return out;
}

/// The score of a visible key, -inf where it is masked; `capped` is the score before the mask.
__device__ float score_of(const Heads& g, const Masks& masks, ConstFloatView q, ConstFloatView k,
                          std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
                          float* capped) {
  float score = 0;
  for (std::int64_t e = 0; e < g.width; ++e) score += q[e] * k[e];
  score *= g.scale;
  if (g.softcap > 0) score = g.softcap * std::tanh(score / g.softcap);
  *capped = score;
  const std::int64_t at = g.mask[0] * b + g.mask[1] * h + g.mask[2] * i + g.mask[3] * j;
  if (masks.shown && !masks.shown[at]) return -std::numeric_limits<float>::infinity();
  return masks.added ? score + masks.added[at] : score;
}

__global__ void forward(Heads g, Masks masks, ConstFloatView q, ConstFloatView k, ConstFloatView v,
                        FloatView y, FloatView lse) {
  __shared__ float shares[kThreads];
  const std::int64_t row = blockIdx.x;
  const std::int64_t i = row % g.queries, h = row / g.queries % g.heads,
                     b = row / g.queries / g.heads;
  const std::int64_t kv = h / (g.heads / g.key_heads);
  const ConstFloatView query = q + place(g.q, b, h, i);
  const Range range = visible(g, masks, b, i);
  float highest = -std::numeric_limits<float>::infinity();
  float total = 0;
  float sums[kWidest / kThreads] = {};
  for (std::int64_t first = range.begin; first < range.end; first += kThreads) {
    const std::int64_t j = first + threadIdx.x;
    float capped, score = -std::numeric_limits<float>::infinity();
    if (j < range.end)
      score = score_of(g, masks, query, k + place(g.k, b, kv, j), b, h, i, j, &capped);
    const float top = MaxOf()(highest, over_block<kThreads>(score, MaxOf()));
    const bool nothing = top == -std::numeric_limits<float>::infinity();
    const float share = nothing ? 0.0f : std::exp(score - top);
    const float keep = nothing ? 1.0f : std::exp(highest - top);
    highest = top;
    shares[threadIdx.x] = share;
    total = total * keep +
            over_block<kThreads>(share, SumOf());  // its barriers make all shares visible
    const std::int64_t count = range.end - first < kThreads ? range.end - first : kThreads;
    for (int part = 0; part < kWidest / kThreads; ++part) {
      const std::int64_t e = part * kThreads + threadIdx.x;
      if (e >= g.value_width) continue;
      float sum = sums[part] * keep;
      for (std::int64_t n = 0; n < count; ++n)
        sum += shares[n] * v[place(g.v, b, kv, first + n) + e];
      sums[part] = sum;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && lse)
    lse[row] = total == 0 ? -std::numeric_limits<float>::infinity() : highest + std::log(total);
  for (int part = 0; y && part < kWidest / kThreads; ++part) {
    const std::int64_t e = part * kThreads + threadIdx.x;
    if (e < g.value_width) y[place(g.y, b, h, i) + e] = total == 0 ? 0.0f : sums[part] / total;
  }
}

/// What makes the sum of each query's e^(score - lse) 1: other than 1 where lse has lost digits.
__global__ void weight_factors(Heads g, Masks masks, ConstFloatView q, ConstFloatView k,
                               ConstFloatView lse, float* factors) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t i = row % g.queries, h = row / g.queries % g.heads,
                     b = row / g.queries / g.heads;
  const std::int64_t kv = h / (g.heads / g.key_heads);
  const float shift = lse[row];
  const bool lost = std::isfinite(shift) && has_lost_digits(shift);
  const Range range = visible(g, masks, b, i);
  float sum = 0;
  for (std::int64_t j = range.begin + threadIdx.x; lost && j < range.end; j += kThreads) {
    float capped;
    sum += std::exp(
        score_of(g, masks, q + place(g.q, b, h, i), k + place(g.k, b, kv, j), b, h, i, j, &capped) -
        shift);
  }
  sum = over_block<kThreads>(sum, SumOf());
  if (threadIdx.x == 0) factors[row] = lost && sum > 0 ? 1 / sum : 1.0f;
}

/// The gradient of the dot product of query and key, the attention weight of the key, and the
/// gradient of the mask.
__device__ float score_gradient(const Heads& g, const Masks& masks, ConstFloatView query,
                                ConstFloatView key, ConstFloatView value, ConstFloatView dy,
                                float delta, float lse, float factor, std::int64_t b,
                                std::int64_t h, std::int64_t i, std::int64_t j, float* share,
                                float* masked) {
  float capped;
  const float score = score_of(g, masks, query, key, b, h, i, j, &capped);
  *share = score == -std::numeric_limits<float>::infinity() ? 0.0f : std::exp(score - lse) * factor;
  float d = 0;
  for (std::int64_t e = 0; e < g.value_width; ++e) d += dy[e] * value[e];
  d = *share * (d - delta);
  *masked = d;
  if (g.softcap > 0) d *= 1 - capped / g.softcap * (capped / g.softcap);
  return *share == 0 ? 0.0f : d * g.scale;
}

__device__ float delta_of(const Heads& g, ConstFloatView dy, ConstFloatView y) {
  float delta = 0;
  for (std::int64_t e = 0; e < g.value_width; ++e) delta += dy[e] * y[e];
  return delta;
}

__global__ void query_gradient(Heads g, Masks masks, ConstFloatView dy, ConstFloatView q,
                               ConstFloatView k, ConstFloatView v, ConstFloatView y,
                               ConstFloatView lse, const float* factors, FloatView dq,
                               FloatView dmask) {
  __shared__ float slopes[kThreads];
  const std::int64_t row = blockIdx.x;
  const std::int64_t i = row % g.queries, h = row / g.queries % g.heads,
                     b = row / g.queries / g.heads;
  const std::int64_t kv = h / (g.heads / g.key_heads);
  const ConstFloatView dyi = dy + place(g.y, b, h, i);
  const float delta = delta_of(g, dyi, y + place(g.y, b, h, i));
  const Range range = visible(g, masks, b, i);
  for (std::int64_t j = threadIdx.x; dmask && j < g.keys; j += kThreads) {
    if (j < range.begin || j >= range.end) dmask[row * g.keys + j] = 0;
  }
  float sums[kWidest / kThreads] = {};
  for (std::int64_t first = range.begin; first < range.end; first += kThreads) {
    const std::int64_t j = first + threadIdx.x;
    float share = 0, slope = 0, masked = 0;
    if (j < range.end)
      slope = score_gradient(g, masks, q + place(g.q, b, h, i), k + place(g.k, b, kv, j),
                             v + place(g.v, b, kv, j), dyi, delta, lse[row], factors[row], b, h, i,
                             j, &share, &masked);
    if (dmask && j < range.end) dmask[row * g.keys + j] = masked;
    __syncthreads();
    slopes[threadIdx.x] = slope;
    __syncthreads();
    const std::int64_t count = range.end - first < kThreads ? range.end - first : kThreads;
    for (int part = 0; part < kWidest / kThreads; ++part) {
      const std::int64_t e = part * kThreads + threadIdx.x;
      if (e >= g.width) continue;
      for (std::int64_t n = 0; n < count; ++n)
        sums[part] += slopes[n] * k[place(g.k, b, kv, first + n) + e];
    }
  }
  for (int part = 0; part < kWidest / kThreads; ++part) {
    const std::int64_t e = part * kThreads + threadIdx.x;
    if (dq && e < g.width) dq[place(g.q, b, h, i) + e] = sums[part];
  }
}

/// Key j of key head kv sums over the queries of all heads that share it.
__global__ void key_gradient(Heads g, Masks masks, ConstFloatView dy, ConstFloatView q,
                             ConstFloatView k, ConstFloatView v, ConstFloatView y,
                             ConstFloatView lse, const float* factors, FloatView dk, FloatView dv) {
  __shared__ float slopes[kThreads];
  __shared__ float shares[kThreads];
  const std::int64_t j = blockIdx.x % g.keys, kv = blockIdx.x / g.keys % g.key_heads,
                     b = blockIdx.x / g.keys / g.key_heads;
  const std::int64_t group = g.heads / g.key_heads;
  float key_sums[kWidest / kThreads] = {}, value_sums[kWidest / kThreads] = {};
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    for (std::int64_t first = 0; first < g.queries; first += kThreads) {
      const std::int64_t i = first + threadIdx.x;
      float share = 0, slope = 0, masked = 0;
      if (i < g.queries) {
        const std::int64_t row = (b * g.heads + h) * g.queries + i;
        const Range range = visible(g, masks, b, i);
        const ConstFloatView dyi = dy + place(g.y, b, h, i);
        if (j >= range.begin && j < range.end)
          slope = score_gradient(g, masks, q + place(g.q, b, h, i), k + place(g.k, b, kv, j),
                                 v + place(g.v, b, kv, j), dyi,
                                 delta_of(g, dyi, y + place(g.y, b, h, i)), lse[row], factors[row],
                                 b, h, i, j, &share, &masked);
      }
      __syncthreads();
      slopes[threadIdx.x] = slope;
      shares[threadIdx.x] = share;
      __syncthreads();
      const std::int64_t count = g.queries - first < kThreads ? g.queries - first : kThreads;
      for (int part = 0; part < kWidest / kThreads; ++part) {
        const std::int64_t e = part * kThreads + threadIdx.x;
        for (std::int64_t n = 0; e < g.width && n < count; ++n)
          key_sums[part] += slopes[n] * q[place(g.q, b, h, first + n) + e];
        for (std::int64_t n = 0; e < g.value_width && n < count; ++n)
          value_sums[part] += shares[n] * dy[place(g.y, b, h, first + n) + e];
      }
    }
  }
  for (int part = 0; part < kWidest / kThreads; ++part) {
    const std::int64_t e = part * kThreads + threadIdx.x;
    if (dk && e < g.width) dk[place(g.k, b, kv, j) + e] = key_sums[part];
    if (dv && e < g.value_width) dv[place(g.v, b, kv, j) + e] = value_sums[part];
  }
}

}  // namespace

bool fits(const Heads& heads) {
  return heads.width <= kWidest && heads.value_width <= kWidest && heads.keys > 0 &&
         heads.queries > 0 && heads.batch > 0;
}

void launch_attention(const Heads& g, const Masks& masks, const ConstFloatView& q,
                      const ConstFloatView& k, const ConstFloatView& v, const FloatView& y,
                      const FloatView& lse, const CudaQueue& queue) {
  PT_LAUNCH(forward, static_cast<unsigned>(g.batch * g.heads * g.queries), kThreads, queue.stream,
            g, masks, q, k, v, y, lse);
}

void launch_attention_gradient(const Heads& g, const Masks& masks, const ConstFloatView& dy,
                               const ConstFloatView& q, const ConstFloatView& k,
                               const ConstFloatView& v, const ConstFloatView& y,
                               const ConstFloatView& lse, const FloatView& dq, const FloatView& dk,
                               const FloatView& dv, const FloatView& dmask, float* factors,
                               const CudaQueue& queue) {
  PT_LAUNCH(weight_factors, static_cast<unsigned>(g.batch * g.heads * g.queries), kThreads,
            queue.stream, g, masks, q, k, lse, factors);
  if (dq || dmask)
    PT_LAUNCH(query_gradient, static_cast<unsigned>(g.batch * g.heads * g.queries), kThreads,
              queue.stream, g, masks, dy, q, k, v, y, lse, factors, dq, dmask);
  if (dk || dv)
    PT_LAUNCH(key_gradient, static_cast<unsigned>(g.batch * g.key_heads * g.keys), kThreads,
              queue.stream, g, masks, dy, q, k, v, y, lse, factors, dk, dv);
}

}  // namespace attention

namespace rotary {
namespace {

/// A thread rotates a pair, or copies an element that is not rotated.
__global__ void turn(Turns g, ConstFloatView x, ConstFloatView cosine, ConstFloatView sine,
                     FloatView y) {
  const std::int64_t places = g.width - g.pairs;
  const std::int64_t count = g.batch * g.heads * g.steps * places;
  for (std::int64_t n = first_of_thread(); n < count; n += step_of_thread()) {
    const std::int64_t i = n % places, t = n / places % g.steps, h = n / places / g.steps % g.heads,
                       b = n / places / g.steps / g.heads;
    const std::int64_t at = b * g.batch_stride + h * g.head_stride + t * g.step_stride;
    if (i >= g.pairs) {
      y[at + g.pairs + i] = x[at + g.pairs + i];
      continue;
    }
    const std::int64_t entry = b * g.table_batch_stride + t * g.pairs + i;
    const std::int64_t first = at + (g.interleaved ? 2 * i : i);
    const std::int64_t second = first + (g.interleaved ? 1 : g.pairs);
    const float c = cosine[entry], s = g.inverse ? -sine[entry] : sine[entry];
    const float u = x[first], w = x[second];
    y[first] = c * u - s * w;
    y[second] = s * u + c * w;
  }
}

}  // namespace

void launch_rotary(const Turns& turns, const ConstFloatView& x, const ConstFloatView& cosine,
                   const ConstFloatView& sine, const FloatView& y, const CudaQueue& queue) {
  const std::int64_t count = turns.batch * turns.heads * turns.steps * (turns.width - turns.pairs);
  if (count > 0)
    PT_LAUNCH(turn, blocks_for(count, queue), kBlock, queue.stream, turns, x, cosine, sine, y);
}

}  // namespace rotary
}  // namespace pipetrain
