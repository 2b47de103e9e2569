// ArgMax and ArgMin: a warp per line, or, where neighbouring lines are adjacent, a thread.
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/reduce/reduce_launch_cuda.h"

namespace pipetrain::reduce {
namespace {

/// An element and its index, below 0 for none.
template <class T>
struct Candidate {
  T value;
  std::int64_t index;
};

template <class T>
__device__ __forceinline__ bool comes_before(const ArgRule& rule, const Candidate<T>& a,
                                             const Candidate<T>& b) {
  if (a.index < 0 || b.index < 0) return b.index < 0;
  if (a.value == b.value) return (a.index > b.index) == rule.last;
  return rule.maximum ? a.value > b.value : a.value < b.value;
}

/// NaN is chosen only as the first element, as on the host. kLanes threads share a line: 1 or 32.
template <class T, int kLanes, class X>
__global__ void find(ArgRule rule, X x, std::int64_t* y) {
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const std::int64_t lines = rule.outer * rule.inner;
  for (std::int64_t line = first_of_thread() / kLanes; line < lines;
       line += step_of_thread() / kLanes) {
    const std::int64_t first = line / rule.inner * rule.size * rule.inner + line % rule.inner;
    Candidate<T> best{T(0), -1};
    for (std::int64_t k = lane; k < rule.size; k += kLanes) {
      const Candidate<T> next{static_cast<T>(x[first + k * rule.inner]), k};
      if (k == 0 || (next.value == next.value && comes_before(rule, next, best))) best = next;
    }
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      const Candidate<T> other{from_lane(best.value, distance), from_lane(best.index, distance)};
      if (comes_before(rule, other, best)) best = other;
    }
    if (lane == 0) y[line] = best.index;
  }
}

template <class T, class X>
void launch(const ArgRule& rule, X x, std::int64_t* y, const CudaQueue& queue) {
  constexpr int kWarp = 32;
  const std::int64_t lines = rule.outer * rule.inner;
  if (lines == 0) return;
  if (rule.inner >= kWarp) {
    PT_LAUNCH((find<T, 1>), blocks_for(lines, queue), kBlock, queue.stream, rule, x, y);
  } else {
    PT_LAUNCH((find<T, kWarp>), blocks_for(lines * kWarp, queue), kBlock, queue.stream, rule, x, y);
  }
}

}  // namespace

void launch_arg(const ArgRule& rule, const ConstFloatView& x, std::int64_t* y,
                const CudaQueue& queue) {
  launch<float>(rule, x, y, queue);
}
void launch_arg(const ArgRule& rule, const std::int32_t* x, std::int64_t* y,
                const CudaQueue& queue) {
  launch<std::int32_t>(rule, x, y, queue);
}
void launch_arg(const ArgRule& rule, const std::int64_t* x, std::int64_t* y,
                const CudaQueue& queue) {
  launch<std::int64_t>(rule, x, y, queue);
}

}  // namespace pipetrain::reduce
