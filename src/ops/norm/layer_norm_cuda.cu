// Layer and root-mean-square normalization. A warp holds a row of up to 1024 elements in registers,
// a block one of up to 8192; longer rows are read again from the cache. All sums have an order that
// depends on the shape only.
//
// Bytes and operations for GPT-2 124M with 8 x 1024 tokens: (8192, 768), x and dx float32, y and dy
// bfloat16. Measured on an H200 before rows were held in registers; the fewest bytes at 4.3 TB/s:
//   LayerNorm             38 MB, 8 operations per element     was 33 us, at least 9 us
//   its input gradient    63 MB, 12 operations                was 54 us, at least 15 us
//   its weights' gradient 38 MB and 1.6 MB of partial sums    was 87 us, at least 9 us, 2 launches
#include <cmath>
#include <initializer_list>
#include <type_traits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/quads_cuda.h"
#include "ops/norm/layer_norm_launch_cuda.h"

namespace pipetrain::layer_norm {
namespace {

constexpr int kWarps = 4;                 // of a block that processes a row per warp
constexpr std::int64_t kMostHeld = 8192;  // elements of a row in the registers of a block
constexpr int kLanes = 32;                // weights' gradient: threads that share a row
constexpr int kDepth = kBlock / kLanes;   // rows that a block reads at once
constexpr int kTile = kLanes * kQuad;     // columns of a block
constexpr int kPrefetch = 4;              // rows that a thread loads before it adds

template <int kThreads>
constexpr int kRowsOfBlock = kThreads == 32 ? kWarps : 1;

/// Elements of a row in registers: kPer for each of kThreads threads, in quads.
template <class Types, int kThreads, int kPer>
struct HeldRow {
  static constexpr int kQuads = kPer / kQuad;
  QuadRow<Types> row;

  __device__ HeldRow(const Norm& norm, bool whole) : row{norm.width, whole} {}
  __device__ int column(int quad) const {
    return (quad * kThreads + static_cast<int>(threadIdx.x) % kThreads) * kQuad;
  }
  __device__ void load(const ConstFloatView& from, float (&values)[kPer]) const {
    PT_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const Quad quad = row.load(from, column(q));
      PT_UNROLL
      for (int i = 0; i < kQuad; ++i) values[q * kQuad + i] = quad.values[i];
    }
  }
  __device__ void store(const FloatView& to, const float (&values)[kPer]) const {
    PT_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      Quad quad;
      PT_UNROLL
      for (int i = 0; i < kQuad; ++i) quad.values[i] = values[q * kQuad + i];
      row.store(to, column(q), quad);
    }
  }
  /// Calls f(value, weight) for each element; the weights are loaded together.
  template <class F>
  __device__ void combine(const ConstFloatView& weights, float (&values)[kPer], F f) const {
    float loaded[kPer];
    load(weights, loaded);
    PT_UNROLL
    for (int i = 0; i < kPer; ++i) f(values[i], loaded[i]);
  }
  /// Calls f(value) for the elements that there are.
  template <class F>
  __device__ void for_each(float (&values)[kPer], F f) const {
    PT_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      PT_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        if (row.has(column(q), i)) f(values[q * kQuad + i]);
      }
    }
  }
};

template <class Types, int kThreads, int kPer>
__global__ void norm_forward(Norm norm, bool whole, ConstFloatView x, ConstFloatView scale,
                             ConstFloatView bias, FloatView y, FloatView means,
                             FloatView inverses) {
  constexpr int kRows = kRowsOfBlock<kThreads>;
  const HeldRow<Types, kThreads, kPer> held(norm, whole);
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kThreads;
       row < norm.rows; row += std::int64_t{gridDim.x} * kRows) {
    float values[kPer];
    held.load(Types::template from<0>(x) + row * norm.width, values);
    float mean = 0;
    if (norm.centred) {
      PT_UNROLL
      for (int i = 0; i < kPer; ++i) mean += values[i];
      mean = over_row<kThreads>(mean, SumOf()) / width;
      held.for_each(values, [&](float& value) { value -= mean; });
    }
    float squares = 0;
    PT_UNROLL
    for (int i = 0; i < kPer; ++i) squares += values[i] * values[i];
    squares = over_row<kThreads>(squares, SumOf());
    const float inverse = 1 / std::sqrt(squares / width + norm.epsilon);
    if (threadIdx.x % kThreads == 0 && means) means[row] = mean;
    if (threadIdx.x % kThreads == 0 && inverses) inverses[row] = inverse;
    if (!y) continue;
    const FloatView to = Types::template to<1>(y) + row * norm.width;
    PT_UNROLL
    for (int i = 0; i < kPer; ++i) values[i] *= inverse;
    if (scale) {
      held.combine(Types::template from<2>(scale), values, [](float& v, float s) { v *= s; });
    }
    if (bias) {
      held.combine(Types::template from<2>(bias), values, [](float& v, float b) { v += b; });
    }
    held.store(to, values);
  }
}

template <class Types, int kThreads, int kPer>
__global__ void __launch_bounds__(kThreads == 32 ? 32 * kWarps : kThreads,
                                  Types::kKnown&& kPer == 24 ? 6 : 1)
    norm_input_gradient(Norm norm, bool whole, ConstFloatView dy, ConstFloatView x,
                        ConstFloatView scale, ConstFloatView means, ConstFloatView inverses,
                        FloatView dx) {
  constexpr int kRows = kRowsOfBlock<kThreads>;
  const HeldRow<Types, kThreads, kPer> held(norm, whole);
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kThreads;
       row < norm.rows; row += std::int64_t{gridDim.x} * kRows) {
    const std::int64_t begin = row * norm.width;
    float slopes[kPer], normals[kPer];
    held.load(Types::template from<0>(dy) + begin, slopes);
    held.load(Types::template from<1>(x) + begin, normals);
    const float mean = norm.centred ? Types::template from<3>(means)[row] : 0.0f;
    const float inverse = Types::template from<3>(inverses)[row];
    held.for_each(normals, [&](float& value) { value = (value - mean) * inverse; });
    if (scale) {
      held.combine(Types::template from<3>(scale), slopes, [](float& v, float s) { v *= s; });
    }
    float sum = 0, weighted = 0;
    PT_UNROLL
    for (int i = 0; i < kPer; ++i) {
      sum += slopes[i];
      weighted += slopes[i] * normals[i];
    }
    sum = norm.centred ? over_row<kThreads>(sum, SumOf()) / width : 0.0f;
    weighted = over_row<kThreads>(weighted, SumOf()) / width;
    const FloatView to = Types::template to<2>(dx) + begin;
    PT_UNROLL
    for (int i = 0; i < kPer; ++i) slopes[i] = inverse * (slopes[i] - sum - normals[i] * weighted);
    held.store(to, slopes);
  }
}

// --- rows of more than kMostHeld elements: one block per row ---

__global__ void long_forward(Norm norm, ConstFloatView x, ConstFloatView scale, ConstFloatView bias,
                             FloatView y, FloatView means, FloatView inverses) {
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const ConstFloatView from = x + row * norm.width;
    float mean = 0;
    if (norm.centred) {
      for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock) mean += from[i];
      mean = over_block<kBlock>(mean, SumOf()) / width;
    }
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock)
      squares += (from[i] - mean) * (from[i] - mean);
    squares = over_block<kBlock>(squares, SumOf());
    const float inverse = 1 / std::sqrt(squares / width + norm.epsilon);
    if (threadIdx.x == 0 && means) means[row] = mean;
    if (threadIdx.x == 0 && inverses) inverses[row] = inverse;
    for (std::int64_t i = threadIdx.x; y && i < norm.width; i += kBlock) {
      const float normal = (from[i] - mean) * inverse;
      y[row * norm.width + i] = normal * (scale ? scale[i] : 1.0f) + (bias ? bias[i] : 0.0f);
    }
  }
}

__global__ void long_input_gradient(Norm norm, ConstFloatView dy, ConstFloatView x,
                                    ConstFloatView scale, ConstFloatView means,
                                    ConstFloatView inverses, FloatView dx) {
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const std::int64_t begin = row * norm.width;
    const float mean = norm.centred ? means[row] : 0.0f;
    const float inverse = inverses[row];
    float sum = 0, weighted = 0;
    for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock) {
      const float g = dy[begin + i] * (scale ? scale[i] : 1.0f);
      sum += g;
      weighted += g * (x[begin + i] - mean) * inverse;
    }
    sum = norm.centred ? over_block<kBlock>(sum, SumOf()) / width : 0.0f;
    weighted = over_block<kBlock>(weighted, SumOf()) / width;
    for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock) {
      const float g = dy[begin + i] * (scale ? scale[i] : 1.0f);
      dx[begin + i] = inverse * (g - sum - (x[begin + i] - mean) * inverse * weighted);
    }
  }
}

// --- gradients of scales and biases ---

/// scales, biases: (chunks, width). A block adds up a chunk of rows in kTile columns: each of its
/// kDepth warps takes every kDepth-th row, each thread four columns.
template <class Types>
__global__ void __launch_bounds__(kBlock, Types::kKnown ? 3 : 1)
    norm_weight_gradient(Norm norm, bool whole, std::int64_t chunk, ConstFloatView dy,
                         ConstFloatView x, ConstFloatView means, ConstFloatView inverses,
                         float* scales, float* biases) {
  __shared__ float parts[2][kDepth][kTile];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int depth = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t column = tile + lane * kQuad;
  const std::int64_t first = blockIdx.y * chunk;
  const std::int64_t last = first + chunk < norm.rows ? first + chunk : norm.rows;
  const QuadRow<Types> columns = {norm.width, whole};
  float scale[kQuad] = {0, 0, 0, 0}, bias[kQuad] = {0, 0, 0, 0};
  const auto add_rows = [&](auto count, std::int64_t row) {
    Quad slopes[count], values[count];
    float mean[count], inverse[count];
    PT_UNROLL
    for (int u = 0; u < count; ++u) {
      const std::int64_t at = row + u * kDepth;
      slopes[u] = columns.load(Types::template from<0>(dy) + at * norm.width, column);
      values[u] = columns.load(Types::template from<1>(x) + at * norm.width, column);
      mean[u] = norm.centred ? Types::template from<2>(means)[at] : 0.0f;
      inverse[u] = Types::template from<2>(inverses)[at];
    }
    PT_UNROLL
    for (int u = 0; u < count; ++u) {
      PT_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        const float g = slopes[u].values[i];
        scale[i] += g * ((values[u].values[i] - mean[u]) * inverse[u]);
        bias[i] += g;
      }
    }
  };
  if (columns.has(column)) {
    std::int64_t row = first + depth;
    for (; row + (kPrefetch - 1) * kDepth < last; row += kDepth * kPrefetch)
      add_rows(std::integral_constant<int, kPrefetch>(), row);
    for (; row < last; row += kDepth) add_rows(std::integral_constant<int, 1>(), row);
  }
  PT_UNROLL
  for (int i = 0; i < kQuad; ++i) {
    parts[0][depth][lane * kQuad + i] = scale[i];
    parts[1][depth][lane * kQuad + i] = bias[i];
  }
  __syncthreads();
  static_assert(kBlock == 2 * kTile);
  const int which = static_cast<int>(threadIdx.x) / kTile;
  const int place = static_cast<int>(threadIdx.x) % kTile;
  float sum = 0;
  PT_UNROLL
  for (int d = 0; d < kDepth; ++d) sum += parts[which][d][place];
  if (tile + place < norm.width)
    (which == 0 ? scales : biases)[blockIdx.y * norm.width + tile + place] = sum;
}

/// Adds up partial sums (chunks, width) of kLanes columns: each of kDepth warps takes every
/// kDepth-th chunk.
__global__ void norm_weight_sum(std::int64_t chunks, std::int64_t width, const float* scales,
                                const float* biases, FloatView dscale, FloatView dbias) {
  constexpr int kLoads = 8;  // in flight per thread
  __shared__ float parts[kDepth][kLanes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int depth = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t column = std::int64_t{blockIdx.x} * kLanes + lane;
  const float* const from = blockIdx.y == 0 ? scales : biases;
  const FloatView to = blockIdx.y == 0 ? dscale : dbias;
  float sum = 0;
  for (std::int64_t chunk = depth; chunk < chunks; chunk += kDepth * kLoads) {
    float loaded[kLoads];
    PT_UNROLL
    for (int u = 0; u < kLoads; ++u) {
      const std::int64_t at = chunk + u * kDepth;
      loaded[u] = at < chunks && column < width ? from[at * width + column] : 0.0f;
    }
    PT_UNROLL
    for (int u = 0; u < kLoads; ++u) sum += loaded[u];
  }
  parts[depth][lane] = sum;
  __syncthreads();
  if (depth > 0 || column >= width || !to) return;
  sum = 0;
  PT_UNROLL
  for (int d = 0; d < kDepth; ++d) sum += parts[d][lane];
  to[column] = sum;
}

// --- choice of a kernel ---

struct Operand {
  const void* data;
  Stored stored;

  Operand(const ConstFloatView& view) : data(view.data), stored(view.stored) {}
  Operand(const FloatView& view) : data(view.data), stored(view.stored) {}
};

/// Whether all operands that there are consist of whole, aligned quads.
bool has_whole_quads(const Norm& norm, std::initializer_list<Operand> operands) {
  bool whole = norm.width % kQuad == 0;
  for (const Operand& one : operands) whole = whole && moves_wide(one.data);
  return whole;
}

/// Whether the operands that there are have these types.
bool have_types(std::initializer_list<Operand> operands, std::initializer_list<Stored> types) {
  auto type = types.begin();
  for (const Operand& one : operands) {
    if (one.data && one.stored != *type) return false;
    ++type;
  }
  return true;
}

/// Calls run(threads of a row, elements per thread, threads of a block, blocks).
template <class Run>
void with_held_row(const Norm& norm, const CudaQueue& queue, const Run& run) {
  const auto warp = [&](auto per) {
    run(std::integral_constant<int, 32>(), per, 32 * kWarps,
        blocks_of_rows((norm.rows + kWarps - 1) / kWarps, queue));
  };
  const auto block = [&](auto per) {
    run(std::integral_constant<int, kBlock>(), per, kBlock, blocks_of_rows(norm.rows, queue));
  };
  if (norm.width <= 256) return warp(std::integral_constant<int, 8>());
  if (norm.width <= 768) return warp(std::integral_constant<int, 24>());
  if (norm.width <= 1024) return warp(std::integral_constant<int, 32>());
  if (norm.width <= 2048) return block(std::integral_constant<int, 8>());
  block(std::integral_constant<int, 32>());
}

constexpr Stored kFloat = Stored::kFloat, kNarrow = Stored::kBFloat16;

}  // namespace

void launch_norm(const Norm& norm, const ConstFloatView& x, const ConstFloatView& scale,
                 const ConstFloatView& bias, const FloatView& y, const FloatView& means,
                 const FloatView& inverses, const CudaQueue& queue) {
  if (norm.rows == 0) return;
  if (norm.width > kMostHeld) {
    PT_LAUNCH(long_forward, blocks_of_rows(norm.rows, queue), kBlock, queue.stream, norm, x, scale,
              bias, y, means, inverses);
    return;
  }
  const bool whole = has_whole_quads(norm, {x, y, scale, bias});
  const auto run = [&](auto types) {
    with_held_row(norm, queue, [&](auto threads, auto per, int block, unsigned blocks) {
      PT_LAUNCH((norm_forward<decltype(types), threads, per>), blocks, block, queue.stream, norm,
                whole, x, scale, bias, y, means, inverses);
    });
  };
  const auto have = [&](Stored from, Stored to) {
    return whole && have_types({x, y, scale, bias}, {from, to, kFloat, kFloat});
  };
  if (have(kFloat, kFloat)) return run(KnownTypes<kFloat, kFloat, kFloat>());
  if (have(kFloat, kNarrow)) return run(KnownTypes<kFloat, kNarrow, kFloat>());
  if (have(kNarrow, kNarrow)) return run(KnownTypes<kNarrow, kNarrow, kFloat>());
  run(AnyTypes());
}

void launch_norm_input_gradient(const Norm& norm, const ConstFloatView& dy, const ConstFloatView& x,
                                const ConstFloatView& scale, const ConstFloatView& means,
                                const ConstFloatView& inverses, const FloatView& dx,
                                const CudaQueue& queue) {
  if (norm.rows == 0) return;
  if (norm.width > kMostHeld) {
    PT_LAUNCH(long_input_gradient, blocks_of_rows(norm.rows, queue), kBlock, queue.stream, norm, dy,
              x, scale, means, inverses, dx);
    return;
  }
  const bool whole = has_whole_quads(norm, {dy, x, dx, scale});
  const auto run = [&](auto types) {
    with_held_row(norm, queue, [&](auto threads, auto per, int block, unsigned blocks) {
      PT_LAUNCH((norm_input_gradient<decltype(types), threads, per>), blocks, block, queue.stream,
                norm, whole, dy, x, scale, means, inverses, dx);
    });
  };
  const auto have = [&](Stored slope, Stored from, Stored to) {
    return whole && have_types({dy, x, dx, scale, means, inverses},
                               {slope, from, to, kFloat, kFloat, kFloat});
  };
  if (have(kFloat, kFloat, kFloat)) return run(KnownTypes<kFloat, kFloat, kFloat, kFloat>());
  if (have(kNarrow, kFloat, kFloat)) return run(KnownTypes<kNarrow, kFloat, kFloat, kFloat>());
  if (have(kNarrow, kNarrow, kNarrow)) return run(KnownTypes<kNarrow, kNarrow, kNarrow, kFloat>());
  run(AnyTypes());
}

std::int64_t norm_chunks(const Norm& norm) {
  constexpr std::int64_t kLeastRows = 64;
  constexpr std::int64_t kBlocks = 768;  // fill the largest GPUs a few times
  const std::int64_t tiles = (norm.width + kTile - 1) / kTile;
  const std::int64_t chunks = (norm.rows + kLeastRows - 1) / kLeastRows;
  const std::int64_t most = tiles < kBlocks ? kBlocks / tiles : 1;
  return chunks < 1 ? 1 : chunks < most ? chunks : most;
}

void launch_norm_weight_gradient(const Norm& norm, const ConstFloatView& dy,
                                 const ConstFloatView& x, const ConstFloatView& means,
                                 const ConstFloatView& inverses, const FloatView& dscale,
                                 const FloatView& dbias, float* workspace, const CudaQueue& queue) {
  const std::int64_t chunks = norm_chunks(norm);
  const std::int64_t chunk = (norm.rows + chunks - 1) / chunks;
  float* const biases = workspace + chunks * norm.width;
  const bool whole = has_whole_quads(norm, {dy, x});
  const auto run = [&](auto types) {
    const auto tiles = static_cast<unsigned>((norm.width + kTile - 1) / kTile);
    PT_LAUNCH(norm_weight_gradient<decltype(types)>, dim3(tiles, static_cast<unsigned>(chunks)),
              kBlock, queue.stream, norm, whole, chunk, dy, x, means, inverses, workspace, biases);
  };
  const auto have = [&](Stored slope, Stored from) {
    return whole && have_types({dy, x, means, inverses}, {slope, from, kFloat, kFloat});
  };
  if (have(kFloat, kFloat)) {
    run(KnownTypes<kFloat, kFloat, kFloat>());
  } else if (have(kNarrow, kFloat)) {
    run(KnownTypes<kNarrow, kFloat, kFloat>());
  } else if (have(kNarrow, kNarrow)) {
    run(KnownTypes<kNarrow, kNarrow, kFloat>());
  } else {
    run(AnyTypes());
  }
  const auto groups = static_cast<unsigned>((norm.width + kLanes - 1) / kLanes);
  PT_LAUNCH(norm_weight_sum, dim3(groups, dbias ? 2 : 1), kBlock, queue.stream, chunks, norm.width,
            workspace, biases, dscale, dbias);
}

}  // namespace pipetrain::layer_norm
