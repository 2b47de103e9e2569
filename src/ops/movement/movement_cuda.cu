// Data movement kernels: one thread per element, with one division per axis except the first.
//
// Bytes for GPT-2 124M with 8 x 1024 tokens (estimates, H200 at 4.3 TB/s): a tensor (8192, 768) of
// bfloat16 is 12.6 MB, so that a transpose, a split of q, k, v's third or the gather of the tokens
// moves 25 MB in 6 us; the divisions of a transpose of four axes, three for each of 6.3 M elements,
// take about 40 us more.
#include "ops/cuda/element_size_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/movement/movement_launch_cuda.h"

namespace pipetrain::movement {
namespace {

/// From: elements of one type, or ConstFloatView; To likewise, or FloatView.
template <class From, class To>
__global__ void copy_strided(CopyWalk walk, From from, To to) {
  for (std::int64_t i = first_of_thread(); i < walk.count; i += step_of_thread()) {
    std::int64_t left = i, source = 0, target = 0;
    for (int d = walk.dimensions - 1; d > 0; --d) {
      const std::int64_t index = left % walk.sizes[d];
      left /= walk.sizes[d];
      source += index * walk.source[d];
      target += index * walk.target[d];
    }
    to[target + left * walk.target[0]] = from[source + left * walk.source[0]];
  }
}

template <class T>
__global__ void fill_elements(T* to, T value, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) to[i] = value;
}

template <class T, class From, class To>
__global__ void keep_triangle(T nothing, From x, To y, std::int64_t rows, std::int64_t columns,
                              bool upper, std::int64_t k, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const std::int64_t diagonal = i % columns - i / columns % rows;
    y[i] = (upper ? diagonal >= k : diagonal <= k) ? x[i] : nothing;
  }
}

}  // namespace

void launch_copy(const CopyWalk& walk, const void* from, void* to, int size,
                 const CudaQueue& queue) {
  if (walk.count == 0) return;
  with_size(size, [&](auto zero) {
    using T = decltype(zero);
    PT_LAUNCH(copy_strided, blocks_for(walk.count, queue), kBlock, queue.stream, walk,
              static_cast<const T*>(from), static_cast<T*>(to));
  });
}

void launch_copy(const CopyWalk& walk, const ConstFloatView& from, const FloatView& to,
                 const CudaQueue& queue) {
  if (walk.count == 0) return;
  PT_LAUNCH(copy_strided, blocks_for(walk.count, queue), kBlock, queue.stream, walk, from, to);
}

void launch_fill_elements(void* to, std::uint64_t bits, int size, std::int64_t count,
                          const CudaQueue& queue) {
  if (count == 0) return;
  with_size(size, [&](auto zero) {
    using T = decltype(zero);
    PT_LAUNCH(fill_elements<T>, blocks_for(count, queue), kBlock, queue.stream, static_cast<T*>(to),
              static_cast<T>(bits), count);
  });
}

void launch_trilu(const void* x, void* y, int size, std::int64_t rows, std::int64_t columns,
                  bool upper, std::int64_t k, std::int64_t count, const CudaQueue& queue) {
  if (count == 0) return;
  with_size(size, [&](auto zero) {
    using T = decltype(zero);
    PT_LAUNCH(keep_triangle, blocks_for(count, queue), kBlock, queue.stream, zero,
              static_cast<const T*>(x), static_cast<T*>(y), rows, columns, upper, k, count);
  });
}

void launch_trilu(const ConstFloatView& x, const FloatView& y, std::int64_t rows,
                  std::int64_t columns, bool upper, std::int64_t k, std::int64_t count,
                  const CudaQueue& queue) {
  if (count == 0) return;
  PT_LAUNCH(keep_triangle, blocks_for(count, queue), kBlock, queue.stream, 0.0f, x, y, rows,
            columns, upper, k, count);
}

}  // namespace pipetrain::movement
