// Gathers: a thread for each element.
#include "ops/cuda/element_size_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/gather/gather_launch_cuda.h"
#include "ops/gather/gather_row_cuda.h"

namespace pipetrain::gather {
namespace {

template <class From, class To>
__global__ void gather(GatherShape s, From data, const void* indices, To y) {
  const std::int64_t count = s.outer * s.count * s.slice;
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const std::int64_t tuple = i / s.slice;
    const std::int64_t row = row_at(s.row, indices, tuple % s.count);
    y[i] = data[(tuple / s.count * s.extent + row) * s.slice + i % s.slice];
  }
}

}  // namespace

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

void launch_gather(const GatherShape& shape, const ConstFloatView& data, const void* indices,
                   const FloatView& y, const CudaQueue& queue) {
  const std::int64_t count = shape.outer * shape.count * shape.slice;
  if (count == 0) return;
  PT_LAUNCH(gather, blocks_for(count, queue), kBlock, queue.stream, shape, data, indices, y);
}

}  // namespace pipetrain::gather
