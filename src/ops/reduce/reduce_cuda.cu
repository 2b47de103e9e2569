// Reductions: one block per result if the reduced elements are contiguous; otherwise the threads of
// a block compute adjacent results, and blocks split the reduced range. The order of a sum depends
// on shapes only.
//
// Bytes and operations of the bias gradients of GPT-2 124M with 8 x 1024 tokens where cuBLASLt does
// not compute them (estimates, H200 at 4.3 TB/s, bfloat16): a layer's four read (8192, 6912), 113
// MB, and add as many numbers: 26 us and two launches of 3 us each, 12 layers 0.4 ms.
#include <cmath>
#include <limits>

#include "ops/cuda/columns_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/kernels_cuda_launch.h"
#include "ops/reduce/reduce_launch_cuda.h"

namespace pipetrain {
namespace reduce {
namespace {

constexpr std::int64_t kChunk = 128;   // elements of one result that a block reduces, or more
constexpr std::int64_t kChunks = 128;  // of one result, at most
constexpr int kSharing = 8;            // threads per result in a block
constexpr int kPrefetch = 4;           // elements that a thread loads before it combines them
/// Elements that a thread combines into a part before it combines parts: one float that millions of
/// numbers are added to loses four digits.
constexpr std::int64_t kPart = 256;

__device__ __forceinline__ std::int64_t offset_of(std::int64_t i, int dimensions,
                                                  const std::int64_t* sizes,
                                                  const std::int64_t* strides) {
  std::int64_t offset = 0;
  for (int d = dimensions - 1; d > 0; --d) {
    offset += i % sizes[d] * strides[d];
    i /= sizes[d];
  }
  return offset + i * strides[0];  // a matrix needs no division
}

__device__ __forceinline__ std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// X: elements of type T, or ConstFloatView; Y likewise, or FloatView.
template <class F, class T, class X, class Y>
__global__ void reduce_rows(F combine, T start, T divisor, ReduceWalk walk, X x, Y y) {
  for (std::int64_t out = blockIdx.x; out < walk.kept; out += gridDim.x) {
    const X from = x + offset_of(out, walk.kept_dimensions, walk.kept_sizes, walk.kept_strides);
    T value = start;
    for (std::int64_t first = 0; first < walk.reduced; first += kPart * kBlock) {
      const std::int64_t last = least(first + kPart * kBlock, walk.reduced);
      T part = start;
      for (std::int64_t i = first + threadIdx.x; i < last; i += kBlock) {
        part = combine(
            part,
            from[offset_of(i, walk.reduced_dimensions, walk.reduced_sizes, walk.reduced_strides)]);
      }
      value = combine(value, part);
    }
    value = over_block<kBlock>(value, combine);
    if (threadIdx.x == 0) y[out] = value / divisor;
  }
}

/// y: (chunks, kept). Every thread computes kWidth adjacent results; kThreads threads share them,
/// each taking every kThreads-th element.
template <int kWidth, int kThreads, class F>
__global__ void reduce_columns(F combine, float start, float divisor, ReduceWalk walk,
                               std::int64_t chunk, ConstFloatView x, FloatView y) {
  constexpr int kSide = kBlock / kThreads;
  __shared__ float parts[kThreads > 1 ? kThreads : 1][kThreads > 1 ? kSide * kWidth : 1];
  const int mine = static_cast<int>(threadIdx.x) / kSide;
  const int side = static_cast<int>(threadIdx.x) % kSide * kWidth;
  const std::int64_t first = blockIdx.y * chunk;
  const std::int64_t end = least(first + chunk, walk.reduced);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSide * kWidth;
  for (std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSide * kWidth;
       begin < walk.kept; begin += step) {
    const std::int64_t out = begin + side;
    auto value = Columns<kWidth>::of(start);
    if (out < walk.kept) {
      const std::int64_t at =
          offset_of(out, walk.kept_dimensions, walk.kept_sizes, walk.kept_strides);
      for (std::int64_t row = first; row < end; row += kPart * kThreads) {
        const std::int64_t last = least(row + kPart * kThreads, end);
        auto part = Columns<kWidth>::of(start);
        for (std::int64_t i = row + mine; i < last; i += kPrefetch * kThreads) {
          Columns<kWidth> next[kPrefetch];
          for (int j = 0; j < kPrefetch; ++j) {
            if (i + j * kThreads < last)
              next[j].load(x, at + offset_of(i + j * kThreads, walk.reduced_dimensions,
                                             walk.reduced_sizes, walk.reduced_strides));
          }
          for (int j = 0; j < kPrefetch; ++j) {
            if (i + j * kThreads < last) part.combine(combine, next[j]);
          }
        }
        value.combine(combine, part);
      }
    }
    if constexpr (kThreads > 1) {
      __syncthreads();  // slower threads may still read the parts of the last round
      for (int w = 0; w < kWidth; ++w) parts[mine][side + w] = value.values[w];
      __syncthreads();
      for (int other = 1; other < kThreads && mine == 0; ++other) {
        for (int w = 0; w < kWidth; ++w)
          value.values[w] = combine(value.values[w], parts[other][side + w]);
      }
    }
    if (mine != 0 || out >= walk.kept) continue;
    for (int w = 0; w < kWidth; ++w) value.values[w] /= divisor;
    value.store(y, blockIdx.y * walk.kept + out);
  }
}

std::int64_t chunks_of(const ReduceWalk& walk) {
  const std::int64_t chunks = (walk.reduced + kChunk - 1) / kChunk;
  return chunks < 1 ? 1 : chunks < kChunks ? chunks : kChunks;
}

bool by_rows(const ReduceWalk& walk) { return walk.innermost_is_reduced && walk.reduced >= 32; }

/// Whether groups of kWide results are contiguous and aligned in x.
bool moves_columns(const ReduceWalk& walk, const ConstFloatView& x, const FloatView& y) {
  const int innermost = walk.kept_dimensions - 1;
  if (innermost < 0 || walk.kept_strides[innermost] != 1) return false;
  bool multiples = walk.kept_sizes[innermost] % kWide == 0;
  for (int d = 0; d < innermost; ++d) multiples = multiples && walk.kept_strides[d] % kWide == 0;
  for (int d = 0; d < walk.reduced_dimensions; ++d)
    multiples = multiples && walk.reduced_strides[d] % kWide == 0;
  return multiples && moves_wide(x.data) && moves_wide(y.data);
}

/// y: (chunks, kept)
template <class F>
void run_columns(F combine, float start, float divisor, const ReduceWalk& walk, std::int64_t chunks,
                 const ConstFloatView& x, const FloatView& y, const CudaQueue& queue) {
  const std::int64_t chunk = (walk.reduced + chunks - 1) / chunks;
  const auto launch = [&](auto kernel, int results) {
    const dim3 grid(blocks_for(walk.kept, queue, results), static_cast<unsigned>(chunks));
    PT_LAUNCH(kernel, grid, kBlock, queue.stream, combine, start, divisor, walk, chunk, x, y);
  };
  if (walk.reduced < 2 * kSharing) {
    launch(reduce_columns<1, 1, F>, kBlock);
  } else if (moves_columns(walk, x, y)) {
    launch(reduce_columns<kWide, kSharing, F>, kBlock / kSharing * kWide);
  } else {
    launch(reduce_columns<1, kSharing, F>, kBlock / kSharing);
  }
}

template <class F, class T, class X, class Y>
void run_rows(F combine, T start, T divisor, const ReduceWalk& walk, X x, Y y,
              const CudaQueue& queue) {
  const std::int64_t most = std::int64_t{16} * queue.multiprocessors;
  const auto blocks = static_cast<unsigned>(walk.kept < most ? walk.kept : most);
  PT_LAUNCH(reduce_rows, blocks, kBlock, queue.stream, combine, start, divisor, walk, x, y);
}

template <class F>
void run(F combine, float start, float divisor, const ReduceWalk& walk, const ConstFloatView& x,
         const FloatView& y, float* workspace, const CudaQueue& queue) {
  if (by_rows(walk)) return run_rows(combine, start, divisor, walk, x, y, queue);
  const std::int64_t chunks = chunks_of(walk);
  if (chunks == 1) return run_columns(combine, start, divisor, walk, 1, x, y, queue);
  run_columns(combine, start, 1.0f, walk, chunks, x, FloatView(workspace), queue);
  ReduceWalk rest;
  rest.kept_dimensions = rest.reduced_dimensions = 1;
  rest.kept_sizes[0] = rest.kept = rest.reduced_strides[0] = walk.kept;
  rest.kept_strides[0] = 1;
  rest.reduced_sizes[0] = rest.reduced = chunks;
  run_columns(combine, start, divisor, rest, 1, ConstFloatView(workspace), y, queue);
}

/// A block per result: masks and lengths are small.
template <class T>
void run_integers(Reduction reduction, const ReduceWalk& walk, const T* x, T* y,
                  const CudaQueue& queue) {
  const auto run_with = [&](auto combine, T start, T divisor) {
    run_rows(combine, start, divisor, walk, x, y, queue);
  };
  switch (reduction) {
    case Reduction::kSum:
      return run_with(SumOf(), 0, 1);
    case Reduction::kMean:
      return run_with(SumOf(), 0, static_cast<T>(walk.reduced));
    case Reduction::kMax:
      return run_with(MaxOf(), std::numeric_limits<T>::lowest(), 1);
    case Reduction::kMin:
      return run_with(MinOf(), std::numeric_limits<T>::max(), 1);
    case Reduction::kProduct:
      return run_with(ProductOf(), 1, 1);
  }
}

}  // namespace

std::int64_t workspace_of(const ReduceWalk& walk) {
  return by_rows(walk) || chunks_of(walk) == 1 ? 0 : chunks_of(walk) * walk.kept;
}

void launch_reduce(Reduction reduction, const ReduceWalk& walk, const ConstFloatView& x,
                   const FloatView& y, float* workspace, const CudaQueue& queue) {
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

void launch_reduce(Reduction reduction, const ReduceWalk& walk, const std::int32_t* x,
                   std::int32_t* y, const CudaQueue& queue) {
  run_integers(reduction, walk, x, y, queue);
}
void launch_reduce(Reduction reduction, const ReduceWalk& walk, const std::int64_t* x,
                   std::int64_t* y, const CudaQueue& queue) {
  run_integers(reduction, walk, x, y, queue);
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
