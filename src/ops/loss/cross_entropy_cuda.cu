// Softmax cross-entropy: one block per row, or one warp for short rows; each thread loads several
// groups of adjacent logits before it computes. Sums over threads have a fixed order.
//
// Bytes and operations for GPT-2 124M with 8 x 1024 tokens and 50257 classes, bfloat16 logits and
// gradient of 823 MB each. Measured on an H200 when each thread loaded one group at a time; the
// fewest bytes at 4.3 TB/s:
//   loss       reads the logits once; 412 M exponentials            was 0.53 ms, at least 0.19 ms
//   gradient   reads the logits, writes as much; 412 M exponentials was 0.57 ms, at least 0.39 ms
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/loss/loss_launch_cuda.h"

namespace pipetrain::loss {
namespace {

constexpr std::int64_t kShortRow = 512;  // rows up to this length take a warp
constexpr int kBatch = 4;                // groups of kWide logits that a thread loads at once

__device__ __forceinline__ float infinity() { return std::numeric_limits<float>::infinity(); }

/// e^x through the GPU's instruction for 2^x.
__device__ __forceinline__ float exponential(float x) { return exp2_or_zero(x * 1.44269504f); }

/// A value and its index; of equal values the first wins.
struct Best {
  float value;
  int place;
};
struct BestOf {
  __device__ Best operator()(Best a, Best b) const {
    return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a;
  }
};

/// Alignment of a row: its first logit is `skew` elements after a multiple of kWide elements.
struct RowPlace {
  std::int64_t origin;
  int skew, classes;

  __device__ RowPlace(const Entropy& s, std::int64_t row)
      : origin(row * s.stride / kWide * kWide),
        skew(static_cast<int>(row * s.stride - origin)),
        classes(static_cast<int>(s.classes)) {}
};

/// Groups of kWide elements, kThreads groups apart.
template <int kCount, int kThreads>
struct Batch {
  static constexpr int kStep = kWide * kThreads;
  WideFloats groups[kCount];

  __device__ void load(const ConstFloatView& from, int i) {
    const std::int64_t first = static_cast<unsigned>(i) / kWide;
    PT_UNROLL
    for (int g = 0; g < kCount; ++g) groups[g] = load_wide(from, first + g * kThreads);
  }
  __device__ void store(const FloatView& to, int i) const {
    const std::int64_t first = static_cast<unsigned>(i) / kWide;
    PT_UNROLL
    for (int g = 0; g < kCount; ++g) store_wide(to, first + g * kThreads, groups[g]);
  }
  /// Calls f(element, offset from the batch's first).
  template <class F>
  __device__ void for_each_backward(F f) {
    PT_UNROLL
    for (int g = kCount - 1; g >= 0; --g) {
      PT_UNROLL
      for (int k = kWide - 1; k >= 0; --k) f(groups[g].values[k], g * kStep + k);
    }
  }
  template <class F>
  __device__ void for_each(F f) {
    PT_UNROLL
    for (int g = 0; g < kCount; ++g) {
      PT_UNROLL
      for (int k = 0; k < kWide; ++k) f(groups[g].values[k], g * kStep + k);
    }
  }
};

/// Visits a row's elements, indexed from its aligned origin, with kThreads threads: wide(i, batch)
/// for a batch of groups from i, a multiple of kWide, single(i) for one element.
template <int kThreads, class Wide, class Single>
__device__ __forceinline__ void for_each_in_row(const RowPlace& row, bool moves_wide, Wide wide,
                                                Single single) {
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int begin = row.skew, end = begin + row.classes;
  int low = (begin + kWide - 1) / kWide * kWide, high = end / kWide * kWide;
  if (!moves_wide || low >= high) low = high = end;
  constexpr int kStep = kWide * kThreads;
  int i = low + kWide * thread;
  for (; i + (kBatch - 1) * kStep < high; i += kBatch * kStep) wide(i, Batch<kBatch, kThreads>());
  for (; i < high; i += kStep) wide(i, Batch<1, kThreads>());
  const int before = low - begin;
  for (int k = thread; k < before + end - high; k += kThreads)
    single(k < before ? begin + k : high + k - before);
}

/// Online softmax over the logits read so far: the maximum, the sum of e^(logit - maximum), and the
/// sum of logits. Each logit is read once; the sum is rescaled when the maximum grows.
struct Seen {
  Best best = {-std::numeric_limits<float>::infinity(), 0x7fffffff};
  float sum = 0, total = 0;

  __device__ void raise(float value, int place) {
    if (sum != 0) sum *= exponential(best.value - value);
    best = {value, place};
  }
  /// The factor by which the sum is rescaled; 0 if all logits were minus infinity.
  __device__ float base() const { return best.value == -infinity() ? 0.0f : best.value; }
  __device__ void add(float value, int place) {
    if (value > best.value) raise(value, place);
    sum += exponential(value - base());
    total += value;
  }
  /// `adds`: whether the sum of logits is wanted.
  template <class Logits>
  __device__ __forceinline__ void add(Logits& logits, int place, bool adds) {
    float greatest = logits.groups[0].values[0];
    logits.for_each([&](float logit, int) { greatest = std::fmax(greatest, logit); });
    if (greatest > best.value) {
      int first = 0;
      logits.for_each_backward(
          [&](float logit, int at) { first = logit == greatest ? at : first; });
      raise(greatest, place + first);
    }
    const float subtract = base();
    float part = 0;
    logits.for_each([&](float logit, int) { part += exponential(logit - subtract); });
    sum += part;
    if (!adds) return;
    logits.for_each([&](float logit, int) { total += logit; });
  }
};

template <class Types, int kThreads>
__global__ void cross_entropy(Entropy s, bool moves_wide, ConstFloatView x,
                              const std::int64_t* labels, FloatView losses, FloatView hits,
                              FloatView log_sums) {
  constexpr int kRows = kBlock / kThreads;
  const bool smooths = s.smoothing > 0;
  for (std::int64_t row = blockIdx.x * kRows + threadIdx.x / kThreads; row < s.rows;
       row += gridDim.x * kRows) {
    const RowPlace place(s, row);
    const ConstFloatView logits = Types::template from<0>(x) + place.origin;
    const std::int64_t label = labels[row];
    const bool known = label >= 0 && label < s.classes;
    const float logit = known ? logits[place.skew + label] : 0.0f;
    Seen seen;
    for_each_in_row<kThreads>(
        place, moves_wide,
        [&](int i, auto batch) {
          batch.load(logits, i);
          seen.add(batch, i - place.skew, smooths);
        },
        [&](int i) { seen.add(logits[i], i - place.skew); });
    const Best best = over_row<kThreads>(seen.best, BestOf());
    const bool any = seen.best.value > -infinity();
    const float sum = over_row<kThreads>(
        any ? seen.sum * exponential(seen.best.value - best.value) : seen.sum, SumOf());
    const float total = smooths ? over_row<kThreads>(seen.total, SumOf()) : 0.0f;
    if (threadIdx.x % kThreads != 0) continue;
    const float log_sum = best.value + std::log(sum);
    if (log_sums) log_sums[row] = log_sum;
    const bool counts = label != s.ignored;
    float target = known ? (1 - s.smoothing) * logit : std::numeric_limits<float>::quiet_NaN();
    // Logits of other classes may be minus infinity (masked).
    if (smooths) target += s.smoothing * (total / static_cast<float>(s.classes));
    losses[row] = counts ? log_sum - target : 0;
    hits[row] = counts && best.place == label ? 1 : 0;
  }
}

template <class Types, int kThreads>
__global__ void __launch_bounds__(kBlock, Types::kKnown ? 4 : 1)
    cross_entropy_gradient(Entropy s, bool moves_wide, ConstFloatView x, const std::int64_t* labels,
                           ConstFloatView log_sums, ConstFloatView gy, FloatView dx) {
  constexpr int kRows = kBlock / kThreads;
  const float spread = s.smoothing / static_cast<float>(s.classes);
  for (std::int64_t row = blockIdx.x * kRows + threadIdx.x / kThreads; row < s.rows;
       row += gridDim.x * kRows) {
    const RowPlace place(s, row);
    const ConstFloatView logits = Types::template from<0>(x) + place.origin;
    const FloatView slopes = Types::template to<1>(dx) + place.origin;
    const std::int64_t label = labels[row];
    const bool counts = label != s.ignored;
    const int target = label >= 0 && label < s.classes ? place.skew + static_cast<int>(label) : -1;
    const float scale = gy[0], log_sum = log_sums[row];
    for_each_in_row<kThreads>(
        place, moves_wide,
        [&](int i, auto batch) {
          batch.load(logits, i);
          batch.for_each([&](float& value, int) { value = exponential(value - log_sum) - spread; });
          const int at = target - i;
          if (at >= 0 && at % batch.kStep < kWide) {
            batch.for_each([&](float& value, int k) {
              if (k == at) value -= 1 - s.smoothing;
            });
          }
          batch.for_each([&](float& value, int) { value = counts ? value * scale : 0.0f; });
          batch.store(slopes, i);
        },
        [&](int i) {
          const float wanted = spread + (i == target ? 1 - s.smoothing : 0.0f);
          slopes[i] = counts ? (exponential(logits[i] - log_sum) - wanted) * scale : 0.0f;
        });
  }
}

/// Calls run(a row's threads, blocks).
template <class Run>
void with_threads(const Entropy& shape, const CudaQueue& queue, const Run& run) {
  if (shape.classes <= kShortRow) {
    run(std::integral_constant<int, 32>(), blocks_for(shape.rows, queue, kBlock / 32));
  } else {
    run(std::integral_constant<int, kBlock>(), blocks_for(shape.rows, queue, 1));
  }
}

/// Calls run(types) for logits and, in the gradient, slopes.
template <class Run>
void with_types(Stored from, Stored to, const Run& run) {
  if (from != to) return run(AnyTypes());
  if (from == Stored::kFloat) return run(KnownTypes<Stored::kFloat, Stored::kFloat>());
  if (from == Stored::kBFloat16) return run(KnownTypes<Stored::kBFloat16, Stored::kBFloat16>());
  run(KnownTypes<Stored::kFloat16, Stored::kFloat16>());
}

}  // namespace

void launch_cross_entropy(const Entropy& shape, const ConstFloatView& x, const std::int64_t* labels,
                          const FloatView& loss, const FloatView& correct,
                          const FloatView& log_sums, float* workspace, const CudaQueue& queue) {
  float* hits = workspace + shape.rows;
  if (shape.rows > 0) {
    with_types(x.stored, x.stored, [&](auto types) {
      with_threads(shape, queue, [&](auto threads, unsigned blocks) {
        PT_LAUNCH((cross_entropy<decltype(types), threads>), blocks, kBlock, queue.stream, shape,
                  moves_wide(x.data), x, labels, FloatView(workspace), FloatView(hits), log_sums);
      });
    });
  }
  launch_two_sums(ConstFloatView(workspace), ConstFloatView(hits), shape.rows, loss, correct,
                  queue);
}

void launch_cross_entropy_gradient(const Entropy& shape, const ConstFloatView& x,
                                   const std::int64_t* labels, const ConstFloatView& log_sums,
                                   const ConstFloatView& gy, const FloatView& dx,
                                   const CudaQueue& queue) {
  if (shape.rows * shape.classes == 0) return;
  const bool wide = moves_wide(x.data) && moves_wide(dx.data);
  with_types(x.stored, dx.stored, [&](auto types) {
    with_threads(shape, queue, [&](auto threads, unsigned blocks) {
      PT_LAUNCH((cross_entropy_gradient<decltype(types), threads>), blocks, kBlock, queue.stream,
                shape, wide, x, labels, log_sums, gy, dx);
    });
  });
}

}  // namespace pipetrain::loss
