// Cumulative sums and products: a thread per line where there are many lines, otherwise a block per
// line. Each thread of a block combines a part of the line, and the parts before it. The order of a
// sum depends on shapes only.
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/reduce/cumulative_launch_cuda.h"

namespace pipetrain::reduce {
namespace {

/// Lines from which on every thread takes whole ones.
constexpr std::int64_t kManyLines = 4096;

struct PlusOf {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct TimesOf {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};

/// Writes the results of steps [first, last) of a line, of which the steps before have `total`.
template <class T, class F, class X, class Y>
__device__ void write_line(F combine, const CumulativeAxis& axis, std::int64_t line, X x, Y y,
                           std::int64_t first, std::int64_t last, T total) {
  const std::int64_t o = line / axis.inner, i = line % axis.inner;
  for (std::int64_t step = first; step < last; ++step) {
    const std::int64_t at = axis.at(o, step, i);
    const T next = combine(total, static_cast<T>(x[at]));
    y[at] = axis.exclusive ? total : next;
    total = next;
  }
}

template <class T, class F, class X, class Y>
__global__ void accumulate_lines(F combine, T start, CumulativeAxis axis, X x, Y y) {
  const std::int64_t lines = axis.outer * axis.inner;
  for (std::int64_t line = first_of_thread(); line < lines; line += step_of_thread())
    write_line(combine, axis, line, x, y, 0, axis.size, start);
}

/// y may be x: a thread reads and writes its own part only.
template <class T, class F, class X, class Y>
__global__ void accumulate_in_blocks(F combine, T start, CumulativeAxis axis, X x, Y y) {
  __shared__ T totals[kBlock];
  const std::int64_t lines = axis.outer * axis.inner;
  const std::int64_t part = (axis.size + kBlock - 1) / kBlock;
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t from = part * thread;
  const std::int64_t first = from < axis.size ? from : axis.size;
  const std::int64_t last = first + part < axis.size ? first + part : axis.size;
  for (std::int64_t line = blockIdx.x; line < lines; line += gridDim.x) {
    const std::int64_t o = line / axis.inner, i = line % axis.inner;
    T total = start;
    for (std::int64_t step = first; step < last; ++step)
      total = combine(total, static_cast<T>(x[axis.at(o, step, i)]));
    // Hillis and Steele (1986): after each round, a thread's total covers twice as many parts.
    for (int distance = 1; distance < kBlock; distance *= 2) {
      __syncthreads();  // slower threads may still read the totals of the last round
      totals[thread] = total;
      __syncthreads();
      if (thread >= distance) total = combine(totals[thread - distance], total);
    }
    __syncthreads();
    totals[thread] = total;
    __syncthreads();
    write_line(combine, axis, line, x, y, first, last, thread > 0 ? totals[thread - 1] : start);
  }
}

template <class T, class F, class X, class Y>
void launch(F combine, T start, const CumulativeAxis& axis, X x, Y y, const CudaQueue& queue) {
  const std::int64_t lines = axis.outer * axis.inner;
  if (lines >= kManyLines) {
    PT_LAUNCH(accumulate_lines, blocks_for(lines, queue), kBlock, queue.stream, combine, start,
              axis, x, y);
  } else {
    PT_LAUNCH(accumulate_in_blocks, static_cast<unsigned>(lines), kBlock, queue.stream, combine,
              start, axis, x, y);
  }
}

template <class T, class X, class Y>
void launch_of(const CumulativeAxis& axis, bool product, X x, Y y, const CudaQueue& queue) {
  if (product) {
    launch(TimesOf(), T(1), axis, x, y, queue);
  } else {
    launch(PlusOf(), T(0), axis, x, y, queue);
  }
}

}  // namespace

void launch_cumulative(const CumulativeAxis& axis, bool product, const ConstFloatView& x,
                       const FloatView& y, const CudaQueue& queue) {
  launch_of<float>(axis, product, x, y, queue);
}
void launch_cumulative(const CumulativeAxis& axis, bool product, const std::int32_t* x,
                       std::int32_t* y, const CudaQueue& queue) {
  launch_of<std::int32_t>(axis, product, x, y, queue);
}
void launch_cumulative(const CumulativeAxis& axis, bool product, const std::int64_t* x,
                       std::int64_t* y, const CudaQueue& queue) {
  launch_of<std::int64_t>(axis, product, x, y, queue);
}

}  // namespace pipetrain::reduce
