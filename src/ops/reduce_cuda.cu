// Reductions: a block for each result where the reduced elements lie side by side, else a thread
// for each result and each piece of what is reduced. The order of a sum depends on shapes only.
#include <cmath>
#include <limits>

#include "ops/grid_cuda.h"
#include "ops/kernels_cuda_launch.h"
#include "ops/reduce_launch_cuda.h"
#include "ops/stored_access_cuda.h"

namespace pipetrain {
namespace reduce {
namespace {

constexpr std::int64_t kPiece = 64;    // elements that one thread reduces
constexpr std::int64_t kPieces = 128;  // at most, of one result

struct ProductOf {
  __device__ float operator()(float a, float b) const { return a * b; }
};

__device__ __forceinline__ std::int64_t offset_of(std::int64_t i, int dimensions,
                                                  const std::int64_t* sizes,
                                                  const std::int64_t* strides) {
  std::int64_t offset = 0;
  for (int d = dimensions - 1; d >= 0; --d) {
    offset += i % sizes[d] * strides[d];
    i /= sizes[d];
  }
  return offset;
}

template <class F>
__global__ void reduce_rows(F combine, float start, float divisor, ReduceWalk walk, Numbers x,
                            Places y) {
  for (std::int64_t out = blockIdx.x; out < walk.kept; out += gridDim.x) {
    const Numbers from =
        x + offset_of(out, walk.kept_dimensions, walk.kept_sizes, walk.kept_strides);
    float value = start;
    for (std::int64_t i = threadIdx.x; i < walk.reduced; i += kBlock) {
      value = combine(
          value,
          from[offset_of(i, walk.reduced_dimensions, walk.reduced_sizes, walk.reduced_strides)]);
    }
    value = over_block<kBlock>(value, combine);
    if (threadIdx.x == 0) y[out] = value / divisor;
  }
}

/// y: (pieces, kept)
template <class F>
__global__ void reduce_columns(F combine, float start, float divisor, ReduceWalk walk,
                               std::int64_t piece, Numbers x, Places y) {
  const std::int64_t first = blockIdx.y * piece;
  const std::int64_t last = first + piece < walk.reduced ? first + piece : walk.reduced;
  for (std::int64_t out = first_of_thread(); out < walk.kept; out += step_of_thread()) {
    const Numbers from =
        x + offset_of(out, walk.kept_dimensions, walk.kept_sizes, walk.kept_strides);
    float value = start;
    for (std::int64_t i = first; i < last; ++i) {
      value = combine(
          value,
          from[offset_of(i, walk.reduced_dimensions, walk.reduced_sizes, walk.reduced_strides)]);
    }
    y[blockIdx.y * walk.kept + out] = value / divisor;
  }
}

std::int64_t pieces_of(const ReduceWalk& walk) {
  const std::int64_t pieces = (walk.reduced + kPiece - 1) / kPiece;
  return pieces < 1 ? 1 : pieces < kPieces ? pieces : kPieces;
}

bool by_rows(const ReduceWalk& walk) { return walk.innermost_is_reduced && walk.reduced >= 32; }

template <class F>
void run(F combine, float start, float divisor, const ReduceWalk& walk, const Numbers& x,
         const Places& y, float* workspace, const CudaQueue& queue) {
  if (by_rows(walk)) {
    const std::int64_t most = std::int64_t{16} * queue.multiprocessors;
    const auto blocks = static_cast<unsigned>(walk.kept < most ? walk.kept : most);
    PT_LAUNCH(reduce_rows, blocks, kBlock, queue.stream, combine, start, divisor, walk, x, y);
    return;
  }
  const std::int64_t pieces = pieces_of(walk);
  const std::int64_t piece = (walk.reduced + pieces - 1) / pieces;
  const dim3 grid(blocks_for(walk.kept, queue), static_cast<unsigned>(pieces));
  if (pieces == 1) {
    PT_LAUNCH(reduce_columns, grid, kBlock, queue.stream, combine, start, divisor, walk, piece, x,
              y);
    return;
  }
  PT_LAUNCH(reduce_columns, grid, kBlock, queue.stream, combine, start, 1.0f, walk, piece, x,
            Places(workspace));
  ReduceWalk rest;
  rest.kept_dimensions = rest.reduced_dimensions = 1;
  rest.kept_sizes[0] = rest.kept = rest.reduced_strides[0] = walk.kept;
  rest.kept_strides[0] = 1;
  rest.reduced_sizes[0] = rest.reduced = pieces;
  PT_LAUNCH(reduce_columns, blocks_for(walk.kept, queue), kBlock, queue.stream, combine, start,
            divisor, rest, pieces, Numbers(workspace), y);
}

}  // namespace

std::int64_t workspace_of(const ReduceWalk& walk) {
  return by_rows(walk) || pieces_of(walk) == 1 ? 0 : pieces_of(walk) * walk.kept;
}

void launch_reduce(Reduction reduction, const ReduceWalk& walk, const Numbers& x, const Places& y,
                   float* workspace, const CudaQueue& queue) {
  if (walk.kept == 0) return;
  const auto run_with = [&](auto combine, float start, float divisor) {
    run(combine, start, divisor, walk, x, y, workspace, queue);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  switch (reduction) {
    case Reduction::kSum:
      return run_with(SumOf(), 0.0f, 1.0f);
    case Reduction::kMean:
      return run_with(SumOf(), 0.0f, static_cast<float>(walk.reduced));
    case Reduction::kMax:
      return run_with(MaxOf(), -kInfinity, 1.0f);
    case Reduction::kMin:
      return run_with(MinOf(), kInfinity, 1.0f);
    case Reduction::kProduct:
      return run_with(ProductOf(), 1.0f, 1.0f);
  }
}

}  // namespace reduce

namespace {

/// A block sums every kSquareParts-th group of its tensor's elements. parts: (tensors,
/// kSquareParts)
__global__ void square_parts(PT_LARGE(SquareList) list, double* parts) {
  const float* values = list.values[blockIdx.y];
  const std::int64_t count = list.counts[blockIdx.y];
  double sum = 0;
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  sum = over_block<kBlock>(sum, SumOf());
  if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

__global__ void add_square_parts(const double* parts, double* sums) {
  const double all =
      over_block<kSquareParts>(parts[blockIdx.x * kSquareParts + threadIdx.x], SumOf());
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

}  // namespace

void launch_sums_of_squares(const SquareList& list, double* sums, double* scratch,
                            const CudaQueue& queue) {
  if (list.count == 0) return;
  const auto tensors = static_cast<unsigned>(list.count);
  PT_LAUNCH(square_parts, dim3(kSquareParts, tensors), kBlock, queue.stream, list, scratch);
  PT_LAUNCH(add_square_parts, tensors, kSquareParts, queue.stream,
            static_cast<const double*>(scratch), sums);
}

}  // namespace pipetrain
