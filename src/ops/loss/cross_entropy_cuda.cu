// Softmax cross-entropy: one block per row, or one warp for short rows. Sums over threads have a
// fixed order.
//
// Bytes and operations for GPT-2 124M with 8 x 1024 tokens and 50257 classes (estimates, H200 at
// 4.3 TB/s, bfloat16 logits and gradient of 823 MB each):
//   loss       reads the logits once; 412 M exponentials            0.2 ms
//   gradient   reads the logits, writes as much; 412 M exponentials 0.4 ms
#include <cmath>
#include <limits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/loss/loss_launch_cuda.h"

namespace pipetrain::loss {
namespace {

constexpr std::int64_t kShortRow = 512;  // rows up to this length take a warp

__device__ __forceinline__ float infinity() { return std::numeric_limits<float>::infinity(); }

/// e^x through the GPU's instruction for 2^x.
__device__ __forceinline__ float exponential(float x) { return std::exp2(x * 1.44269504f); }

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

/// Combines the values of the kThreads threads that share a row.
template <int kThreads, class T, class F>
__device__ T over_row(T value, F combine) {
  if constexpr (kThreads == kBlock) {
    return over_block<kBlock>(value, combine);
  } else {
    static_assert(kThreads == 32);
    for (int distance = 16; distance > 0; distance /= 2)
      value = combine(value, from_lane(value, distance));
    return value;
  }
}

/// Alignment of a row: its first logit is `skew` elements after a multiple of kWide elements.
struct RowPlace {
  std::int64_t origin;
  int skew, classes;

  __device__ RowPlace(const Entropy& s, std::int64_t row)
      : origin(row * s.stride / kWide * kWide),
        skew(static_cast<int>(row * s.stride - origin)),
        classes(static_cast<int>(s.classes)) {}
};

/// Visits a row's elements, indexed from its aligned origin, with kThreads threads: wide(i) for
/// kWide elements from i, a multiple of kWide, single(i) for one.
template <int kThreads, class Wide, class Single>
__device__ __forceinline__ void for_each_in_row(const RowPlace& row, bool moves_wide, Wide wide,
                                                Single single) {
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int begin = row.skew, end = begin + row.classes;
  int low = (begin + kWide - 1) / kWide * kWide, high = end / kWide * kWide;
  if (!moves_wide || low >= high) low = high = end;
  for (int i = low + kWide * thread; i < high; i += kWide * kThreads) wide(i);
  const int before = low - begin;
  for (int i = thread; i < before + end - high; i += kThreads)
    single(i < before ? begin + i : high + i - before);
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
  __device__ void add(const WideFloats& logits, int place) {
    float greatest = logits.values[0];
    for (int i = 1; i < kWide; ++i)
      greatest = logits.values[i] > greatest ? logits.values[i] : greatest;
    if (greatest > best.value) {
      int first = 0;
      while (logits.values[first] != greatest) ++first;
      raise(greatest, place + first);
    }
    const float subtract = base();
    for (int i = 0; i < kWide; ++i) {
      sum += exponential(logits.values[i] - subtract);
      total += logits.values[i];
    }
  }
};

template <int kThreads>
__global__ void cross_entropy(Entropy s, bool moves_wide, ConstFloatView x,
                              const std::int64_t* labels, FloatView losses, FloatView hits,
                              FloatView log_sums) {
  constexpr int kRows = kBlock / kThreads;
  for (std::int64_t row = blockIdx.x * kRows + threadIdx.x / kThreads; row < s.rows;
       row += gridDim.x * kRows) {
    const RowPlace place(s, row);
    const ConstFloatView logits = x + place.origin;
    Seen seen;
    for_each_in_row<kThreads>(
        place, moves_wide, [&](int i) { seen.add(load_wide(logits, i / kWide), i - place.skew); },
        [&](int i) { seen.add(logits[i], i - place.skew); });
    const Best best = over_row<kThreads>(seen.best, BestOf());
    const bool any = seen.best.value > -infinity();
    const float sum = over_row<kThreads>(
        any ? seen.sum * exponential(seen.best.value - best.value) : seen.sum, SumOf());
    const float total = over_row<kThreads>(seen.total, SumOf());
    if (threadIdx.x % kThreads != 0) continue;
    const float log_sum = best.value + std::log(sum);
    const std::int64_t label = labels[row];
    if (log_sums) log_sums[row] = log_sum;
    const bool counts = label != s.ignored;
    const bool known = label >= 0 && label < s.classes;
    float target = known ? (1 - s.smoothing) * logits[place.skew + label]
                         : std::numeric_limits<float>::quiet_NaN();
    // Logits of other classes may be minus infinity (masked).
    if (s.smoothing > 0) target += s.smoothing * (total / static_cast<float>(s.classes));
    losses[row] = counts ? log_sum - target : 0;
    hits[row] = counts && best.place == label ? 1 : 0;
  }
}

template <int kThreads>
__global__ void cross_entropy_gradient(Entropy s, bool moves_wide, ConstFloatView x,
                                       const std::int64_t* labels, ConstFloatView log_sums,
                                       ConstFloatView gy, FloatView dx) {
  constexpr int kRows = kBlock / kThreads;
  const float spread = s.smoothing / static_cast<float>(s.classes);
  for (std::int64_t row = blockIdx.x * kRows + threadIdx.x / kThreads; row < s.rows;
       row += gridDim.x * kRows) {
    const RowPlace place(s, row);
    const ConstFloatView logits = x + place.origin;
    const FloatView slopes = dx + place.origin;
    const std::int64_t label = labels[row];
    const bool counts = label != s.ignored;
    const int target = label >= 0 && label < s.classes ? place.skew + static_cast<int>(label) : -1;
    const float scale = gy[0], log_sum = log_sums[row];
    const auto slope = [&](float logit, int i) {
      const float wanted = spread + (i == target ? 1 - s.smoothing : 0.0f);
      return counts ? (exponential(logit - log_sum) - wanted) * scale : 0.0f;
    };
    for_each_in_row<kThreads>(
        place, moves_wide,
        [&](int i) {
          WideFloats values = load_wide(logits, i / kWide);
          for (int k = 0; k < kWide; ++k) values.values[k] = slope(values.values[k], i + k);
          store_wide(slopes, i / kWide, values);
        },
        [&](int i) { slopes[i] = slope(logits[i], i); });
  }
}

/// Calls run(kernel's threads of a row, blocks).
template <class Run>
void with_threads(const Entropy& shape, const CudaQueue& queue, const Run& run) {
  if (shape.classes <= kShortRow) {
    run(std::integral_constant<int, 32>(), blocks_for(shape.rows, queue, kBlock / 32));
  } else {
    run(std::integral_constant<int, kBlock>(), blocks_for(shape.rows, queue, 1));
  }
}

}  // namespace

void launch_cross_entropy(const Entropy& shape, const ConstFloatView& x, const std::int64_t* labels,
                          const FloatView& loss, const FloatView& correct,
                          const FloatView& log_sums, float* workspace, const CudaQueue& queue) {
  float* hits = workspace + shape.rows;
  if (shape.rows > 0) {
    with_threads(shape, queue, [&](auto threads, unsigned blocks) {
      PT_LAUNCH(cross_entropy<threads>, blocks, kBlock, queue.stream, shape, moves_wide(x.data), x,
                labels, FloatView(workspace), FloatView(hits), log_sums);
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
  with_threads(shape, queue, [&](auto threads, unsigned blocks) {
    PT_LAUNCH(cross_entropy_gradient<threads>, blocks, kBlock, queue.stream, shape, wide, x, labels,
              log_sums, gy, dx);
  });
}

}  // namespace pipetrain::loss
