// Data movement kernels.
#include "ops/grid_cuda.h"
#include "ops/movement_launch_cuda.h"
#include "ops/stored_access_cuda.h"

namespace pipetrain::movement {
namespace {

/// From: elements of one type, or Numbers; To likewise, or Places.
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

__device__ __forceinline__ std::int64_t index_at(const void* indices, std::int64_t i, bool wide,
                                                 std::int64_t extent) {
  std::int64_t index = wide ? static_cast<const std::int64_t*>(indices)[i]
                            : static_cast<const std::int32_t*>(indices)[i];
  if (index < 0) index += extent;
  return index < 0 ? 0 : index >= extent ? extent - 1 : index;
}

template <class From, class To>
__global__ void gather(GatherShape s, From data, const void* indices, To y) {
  const std::int64_t count = s.outer * s.count * s.slice;
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const std::int64_t tuple = i / s.slice;
    const std::int64_t row = index_at(indices, tuple % s.count, s.wide, s.extent);
    y[i] = data[(tuple / s.count * s.extent + row) * s.slice + i % s.slice];
  }
}

/// A block for each index: the first of equal ones adds for all of them, in their order.
__global__ void gather_gradient(GatherShape s, Numbers dy, const void* indices, Places dx) {
  const std::int64_t mine = blockIdx.x;
  const std::int64_t row = index_at(indices, mine, s.wide, s.extent);
  int earlier = 0;
  for (std::int64_t i = threadIdx.x; i < mine; i += kBlock)
    earlier |= index_at(indices, i, s.wide, s.extent) == row;
  if (over_block<kBlock>(earlier, MaxOf()) != 0) return;
  for (std::int64_t at = threadIdx.x; at < s.outer * s.slice; at += kBlock) {
    const std::int64_t outer = at / s.slice, within = at % s.slice;
    float sum = 0;
    for (std::int64_t i = mine; i < s.count; ++i) {
      if (index_at(indices, i, s.wide, s.extent) == row)
        sum += dy[(outer * s.count + i) * s.slice + within];
    }
    dx[(outer * s.extent + row) * s.slice + within] = sum;
  }
}

/// Calls run(T()) with a type of `size` bytes.
template <class Run>
void with_size(int size, const Run& run) {
  if (size == 1) run(std::uint8_t());
  if (size == 2) run(std::uint16_t());
  if (size == 4) run(std::uint32_t());
  if (size == 8) run(std::uint64_t());
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

void launch_copy(const CopyWalk& walk, const Numbers& from, const Places& to,
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

void launch_trilu(const Numbers& x, const Places& y, std::int64_t rows, std::int64_t columns,
                  bool upper, std::int64_t k, std::int64_t count, const CudaQueue& queue) {
  if (count == 0) return;
  PT_LAUNCH(keep_triangle, blocks_for(count, queue), kBlock, queue.stream, 0.0f, x, y, rows,
            columns, upper, k, count);
}

void launch_gather(const GatherShape& shape, const void* data, const void* indices, void* y,
                   int size, const CudaQueue& queue) {
  const std::int64_t count = shape.outer * shape.count * shape.slice;
  if (count == 0) return;
  with_size(size, [&](auto zero) {
    using T = decltype(zero);
    PT_LAUNCH(gather, blocks_for(count, queue), kBlock, queue.stream, shape,
              static_cast<const T*>(data), indices, static_cast<T*>(y));
  });
}

void launch_gather(const GatherShape& shape, const Numbers& data, const void* indices,
                   const Places& y, const CudaQueue& queue) {
  const std::int64_t count = shape.outer * shape.count * shape.slice;
  if (count == 0) return;
  PT_LAUNCH(gather, blocks_for(count, queue), kBlock, queue.stream, shape, data, indices, y);
}

void launch_gather_gradient(const GatherShape& shape, const Numbers& dy, const void* indices,
                            const Places& dx, const CudaQueue& queue) {
  launch_fill_elements(dx.data, 0, dx.stored == Stored::kFloat ? 4 : 2,
                       shape.outer * shape.extent * shape.slice, queue);
  if (shape.count == 0) return;
  PT_LAUNCH(gather_gradient, static_cast<unsigned>(shape.count), kBlock, queue.stream, shape, dy,
            indices, dx);
}

}  // namespace pipetrain::movement
