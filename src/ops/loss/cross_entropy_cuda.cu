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
#include "ops/kernel/log_sum.h"
#include "ops/loss/loss_launch_cuda.h"

namespace pipetrain::loss {
namespace {

constexpr std::int64_t kShortRow = 512;  // rows up to this length take a warp
constexpr int kBatch = 4;                // groups of kWide logits that a thread loads at once

__device__ __forceinline__ float infinity() { return std::numeric_limits<float>::infinity(); }

/// e^x through the GPU's instruction for 2^x.
__device__ __forceinline__ float exponential(float x) { return exp2_or_zero(x * 1.44269504f); }

/// The greater value, and the lesser place; NaN loses.
struct GreatestOf {
  __device__ float operator()(float a, float b) const { return std::fmax(a, b); }
};
struct FirstOf {
  __device__ int operator()(int a, int b) const { return b < a ? b : a; }
};

/// Alignment of a row: its first logit is `skew` elements after a multiple of kWide elements, its
/// `origin`, from which elements are indexed. Those in [low, high) are loaded in groups of kWide.
struct RowPlace {
  std::int64_t origin;
  int skew, end, low, high;

  __device__ RowPlace(const Entropy& s, std::int64_t row, bool moves_wide)
      : origin(row * s.stride / kWide * kWide),
        skew(static_cast<int>(row * s.stride - origin)),
        end(skew + static_cast<int>(s.classes)),
        low((skew + kWide - 1) / kWide * kWide),
        high(end / kWide * kWide) {
    if (!moves_wide || low >= high) low = high = end;
  }
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

/// Calls f with a batch of the groups that a thread takes together from i on.
template <int kThreads, class F>
__device__ __forceinline__ void with_batch(const RowPlace& row, int i, F f) {
  if (i + (kBatch - 1) * kWide * kThreads < row.high) {
    f(Batch<kBatch, kThreads>());
  } else {
    f(Batch<1, kThreads>());
  }
}

/// Visits a row's elements with kThreads threads: wide(i, batch) for a batch of groups from i, a
/// multiple of kWide, single(i) for one element.
template <int kThreads, class Wide, class Single>
__device__ __forceinline__ void for_each_in_row(const RowPlace& row, Wide wide, Single single) {
  constexpr int kStep = kWide * kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  int i = row.low + kWide * thread;
  for (; i + (kBatch - 1) * kStep < row.high; i += kBatch * kStep)
    wide(i, Batch<kBatch, kThreads>());
  for (; i < row.high; i += kStep) wide(i, Batch<1, kThreads>());
  const int before = row.low - row.skew;
  for (int k = thread; k < before + row.end - row.high; k += kThreads)
    single(k < before ? row.skew + k : row.high + k - before);
}

/// Online softmax over the logits read so far: the greatest, the sum of e^(logit - greatest), and
/// the sum of logit - origin. Each logit is read once; the sum is rescaled when a greater one comes.
/// `place` is where the greatest was first seen: its index, or that of its batch.
struct Seen {
  float greatest = -std::numeric_limits<float>::infinity();
  int place = 0x7fffffff;
  float sum = 0, total = 0;
  float origin = 0;  // which logits are summed relative to

  __device__ void raise(float value, int at) {
    if (sum != 0) sum *= exponential(greatest - value);
    greatest = value;
    place = at;
  }
  __device__ bool any() const { return greatest > -infinity(); }
  /// What is subtracted from logits; 0 if all were minus infinity.
  __device__ float base() const { return any() ? greatest : 0.0f; }
  __device__ void add(float value, int at) {
    if (value > greatest) raise(value, at);
    if (value == greatest && at < place) place = at;  // before the groups, but visited after them
    sum += exponential(value - base());
    total += value - origin;
  }
  /// `adds`: whether the sum of logits is wanted.
  template <class Logits>
  __device__ __forceinline__ void add(Logits& logits, int at, bool adds) {
    float most = logits.groups[0].values[0];
    logits.for_each([&](float logit, int) { most = std::fmax(most, logit); });
    if (most > greatest) raise(most, at);
    const float subtract = base();
    float part = 0;
    logits.for_each([&](float logit, int) { part += exponential(logit - subtract); });
    sum += part;
    if (!adds) return;
    logits.for_each([&](float logit, int) { total += logit - origin; });
  }
  /// Reads this thread's part of a row.
  template <int kThreads>
  __device__ __forceinline__ void read(const RowPlace& row, const ConstFloatView& logits,
                                       bool adds) {
    for_each_in_row<kThreads>(
        row,
        [&](int i, auto batch) {
          batch.load(logits, i);
          add(batch, i, adds);
        },
        [&](int i) { add(logits[i], i); });
  }
  /// The sum of e^(logit - greatest) over the threads of a row, given the greatest of all of them.
  template <int kThreads>
  __device__ float sum_over_row(float greatest_of_row) const {
    return over_row<kThreads>(any() ? sum * exponential(greatest - greatest_of_row) : sum, SumOf());
  }
  /// The index of the greatest.
  template <int kThreads>
  __device__ int first(const RowPlace& row, const ConstFloatView& logits) const {
    if (place < row.low || place >= row.high) return place;
    int found = place;
    with_batch<kThreads>(row, place, [&](auto batch) {
      batch.load(logits, place);
      batch.for_each_backward([&](float logit, int at) {
        if (logit == greatest) found = place + at;
      });
    });
    return found;
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
    const RowPlace place(s, row, moves_wide);
    const ConstFloatView logits = Types::template from<0>(x) + place.origin;
    const std::int64_t label = labels[row];
    const bool known = label >= 0 && label < s.classes;
    const float logit = known ? logits[place.skew + label] : 0.0f;
    Seen seen;
    if (std::isfinite(logit)) seen.origin = logit;
    seen.read<kThreads>(place, logits, smooths);
    const float greatest = over_row<kThreads>(seen.greatest, GreatestOf());
    const float sum = seen.sum_over_row<kThreads>(greatest);
    const float total = smooths ? over_row<kThreads>(seen.total, SumOf()) : 0.0f;
    bool hit = known && logit == greatest;  // in all threads of the row
    if (hit) {
      const bool here = seen.any() && seen.greatest == greatest;
      const int first = here ? seen.first<kThreads>(place, logits) : 0x7fffffff;
      hit = over_row<kThreads>(first, FirstOf()) == place.skew + label;
    }
    if (threadIdx.x % kThreads != 0) continue;
    const float log_sum = std::log(sum);  // relative to the greatest, as the target
    if (log_sums) log_sums[row] = greatest + log_sum;
    const bool counts = label != s.ignored;
    float target =
        known ? (1 - s.smoothing) * (logit - greatest) : std::numeric_limits<float>::quiet_NaN();
    // Logits of other classes may be minus infinity (masked).
    if (smooths)
      target += s.smoothing * (total / static_cast<float>(s.classes) + (seen.origin - greatest));
    losses[row] = counts ? log_sum - target : 0;
    hits[row] = counts && hit ? 1 : 0;
  }
}

/// The probabilities of a row are e^(logit - shift) times the factor.
struct RowScale {
  float shift, factor;
};
/// All threads of the row call this, with the same log_sum, ln Σ e^logit.
template <int kThreads>
__device__ RowScale scale_of(const RowPlace& row, const ConstFloatView& logits, float log_sum) {
  if (!has_lost_digits(log_sum)) return {log_sum, 1.0f};
  Seen seen;
  seen.read<kThreads>(row, logits, false);
  const float greatest = over_row<kThreads>(seen.greatest, GreatestOf());
  return {greatest, 1 / seen.sum_over_row<kThreads>(greatest)};
}

template <class Types, int kThreads>
__global__ void __launch_bounds__(kBlock, Types::kKnown ? 4 : 1)
    cross_entropy_gradient(Entropy s, bool moves_wide, ConstFloatView x, const std::int64_t* labels,
                           ConstFloatView log_sums, ConstFloatView gy, FloatView dx) {
  constexpr int kRows = kBlock / kThreads;
  const float spread = s.smoothing / static_cast<float>(s.classes);
  for (std::int64_t row = blockIdx.x * kRows + threadIdx.x / kThreads; row < s.rows;
       row += gridDim.x * kRows) {
    const RowPlace place(s, row, moves_wide);
    const ConstFloatView logits = Types::template from<0>(x) + place.origin;
    const FloatView slopes = Types::template to<1>(dx) + place.origin;
    const std::int64_t label = labels[row];
    const bool counts = label != s.ignored;
    const int target = label >= 0 && label < s.classes ? place.skew + static_cast<int>(label) : -1;
    const RowScale softmax = scale_of<kThreads>(place, logits, log_sums[row]);
    const float scale = gy[0], shift = softmax.shift, factor = softmax.factor;
    for_each_in_row<kThreads>(
        place,
        [&](int i, auto batch) {
          batch.load(logits, i);
          batch.for_each([&](float& value, int) {
            value = exponential(value - shift) * factor - spread;
          });
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
          slopes[i] = counts ? (exponential(logits[i] - shift) * factor - wanted) * scale : 0.0f;
        });
    // Matmuls may read the padding behind the row.
    for (std::int64_t i = s.classes + threadIdx.x % kThreads; i < s.stride; i += kThreads)
      slopes[place.skew + i] = 0.0f;
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
