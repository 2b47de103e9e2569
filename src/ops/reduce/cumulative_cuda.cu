// Cumulative sums and products: a thread per line, or, of few lines, a block per line: each thread
// combines a part of the line, one thread combines the parts, and each thread writes its part. The
// order of a sum depends on shapes only; lines of at most kBlock steps have the host's bits. In
// longer ones, the sum of a part may overflow where the host's does not. Products of floats are
// never taken in parts: those of later parts could overflow where the host multiplies by zero
// first.
#include <type_traits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/reduce/cumulative_launch_cuda.h"

namespace pipetrain::reduce {
namespace {

/// From so many lines on, a thread per line.
constexpr std::int64_t kManyLines = 4096;

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

template <class T, class F, class X, class Y>
__global__ void accumulate_in_parts(F combine, T start, CumulativeAxis axis, X x, Y y) {
  __shared__ T totals[kBlock];
  const std::int64_t lines = axis.outer * axis.inner;
  const std::int64_t part = (axis.size + kBlock - 1) / kBlock;
  const std::int64_t from = part * threadIdx.x;
  const std::int64_t first = from < axis.size ? from : axis.size;
  const std::int64_t last = first + part < axis.size ? first + part : axis.size;
  for (std::int64_t line = blockIdx.x; line < lines; line += gridDim.x) {
    const std::int64_t o = line / axis.inner, i = line % axis.inner;
    T total = start;
    for (std::int64_t step = first; step < last; ++step)
      total = combine(total, static_cast<T>(x[axis.at(o, step, i)]));
    totals[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
      T before = start;
      for (int thread = 0; thread < kBlock; ++thread) {
        const T mine = totals[thread];
        totals[thread] = before;
        before = combine(before, mine);
      }
    }
    __syncthreads();
    write_line(combine, axis, line, x, y, first, last, totals[threadIdx.x]);
  }
}

template <class T, class F, class X, class Y>
void launch_with(F combine, T start, bool in_parts, const CumulativeAxis& axis, X x, Y y,
                 const CudaQueue& queue) {
  const std::int64_t lines = axis.outer * axis.inner;
  if (in_parts && lines < kManyLines) {
    PT_LAUNCH(accumulate_in_parts, static_cast<unsigned>(lines), kBlock, queue.stream, combine,
              start, axis, x, y);
  } else {
    PT_LAUNCH(accumulate_lines, blocks_for(lines, queue), kBlock, queue.stream, combine, start,
              axis, x, y);
  }
}

template <class T, class X, class Y>
void launch(const CumulativeAxis& axis, bool product, X x, Y y, const CudaQueue& queue) {
  if (product) {
    launch_with(ProductOf(), T(1), std::is_integral_v<T>, axis, x, y, queue);
  } else {
    launch_with(SumOf(), T(0), true, axis, x, y, queue);
  }
}

}  // namespace

void launch_cumulative(const CumulativeAxis& axis, bool product, const ConstFloatView& x,
                       const FloatView& y, const CudaQueue& queue) {
  launch<float>(axis, product, x, y, queue);
}
void launch_cumulative(const CumulativeAxis& axis, bool product, const std::int32_t* x,
                       std::int32_t* y, const CudaQueue& queue) {
  launch<std::int32_t>(axis, product, x, y, queue);
}
void launch_cumulative(const CumulativeAxis& axis, bool product, const std::int64_t* x,
                       std::int64_t* y, const CudaQueue& queue) {
  launch<std::int64_t>(axis, product, x, y, queue);
}

}  // namespace pipetrain::reduce
