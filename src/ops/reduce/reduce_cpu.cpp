// Reductions over float32; sums and means over bfloat16 too, added up in float32. The input is read
// in memory order; a task computes a chunk of the output over one range of the outer reduced
// positions ("split"). The splits depend on the shape only, so the result is the same for any
// number of threads, and unless there are millions of positions, each accumulator adds at most a
// few hundred values, which limits the rounding error.
#include <omp.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ops/kernel/narrow_cpu.h"
#include "ops/reduce/reduce.h"

namespace pipetrain::reduce {
namespace {

constexpr std::int64_t kParallelElements = 65536;
constexpr std::int64_t kRowsPerSplit = 256;  // for runs of one element; fewer for longer ones
constexpr std::int64_t kManySplits = 256;
// Rows into which a single run is cut.
constexpr std::int64_t kLongestPiece = 16384, kShortestPiece = 256;
constexpr std::int64_t kMaximumPartials = std::int64_t{1} << 20;
// Columns of a task. Long runs of a row let the processor prefetch; their sums stay in the L1
// cache.
constexpr std::int64_t kMaximumChunk = 2048;
constexpr std::int64_t kMaximumRuns = 64;

float value_of(float x) { return x; }
float value_of(BFloat16Bits x) { return x.widened(); }

struct Add {
  static constexpr float kStart = 0;
  float operator()(float a, float b) const { return a + b; }
};
struct Multiply {
  static constexpr float kStart = 1;
  float operator()(float a, float b) const { return a * b; }
};
/// NaN wins in both.
struct Largest {
  static constexpr float kStart = -std::numeric_limits<float>::infinity();
  float operator()(float a, float b) const { return b > a || b != b ? b : a; }
};
struct Smallest {
  static constexpr float kStart = std::numeric_limits<float>::infinity();
  float operator()(float a, float b) const { return b < a || b != b ? b : a; }
};

/// Adds whole groups of kLanes elements of x[0 … count) to `result`; returns how many elements that
/// were.
template <class F, std::int64_t kLanes, class T>
std::int64_t reduce_lanes(const T* x, std::int64_t count, float& result) {
  const F combine;
  const std::int64_t end = count / kLanes * kLanes;
  if (end == 0) return 0;
  float lanes[kLanes];
  for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = value_of(x[lane]);
  for (std::int64_t i = kLanes; i < end; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = combine(lanes[lane], value_of(x[i + lane]));
    }
  }
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) {
      lanes[lane] = combine(lanes[lane], lanes[lane + half]);
    }
  }
  result = combine(result, lanes[0]);
  return end;
}

/// Reduces x[0 … count) in a fixed order: 32 lanes in chunks of 4096, then 8 lanes, then the rest.
template <class F, class T>
float reduce_run(const T* x, std::int64_t count) {
  constexpr std::int64_t kChunk = 4096;
  constexpr std::int64_t kManyLanes = 32;
  const F combine;
  float result = F::kStart;
  while (count >= 2 * kManyLanes) {
    const std::int64_t done = reduce_lanes<F, kManyLanes>(x, std::min(count, kChunk), result);
    x += done;
    count -= done;
  }
  const std::int64_t done = reduce_lanes<F, 8>(x, count, result);
  for (std::int64_t i = done; i < count; ++i) result = combine(result, value_of(x[i]));
  return result;
}

/// The loops of a reduction plan.
struct Loops {
  std::vector<ReducePlan::Dimension> outer_kept, outer_reduced;
  std::int64_t outer_kept_count = 1;
  std::int64_t rows = 1;         // outer reduced positions
  std::int64_t kept = 1;         // the innermost kept dimension, contiguous in the output
  std::int64_t kept_stride = 1;  // of its elements in the input
  std::int64_t run = 1;          // contiguous reduced elements
  std::int64_t chunk = 1;        // of the innermost kept dimension, per task
  std::int64_t chunks = 1;
  std::int64_t splits = 1;

  explicit Loops(const ReducePlan& plan) {
    std::size_t left = plan.dims.size();
    if (left > 0 && plan.dims[left - 1].reduced) run = plan.dims[--left].size;
    if (left > 0) {
      kept = plan.dims[--left].size;
      kept_stride = plan.dims[left].input_stride;
    }
    for (std::size_t i = 0; i < left; ++i) {
      const ReducePlan::Dimension& dim = plan.dims[i];
      (dim.reduced ? outer_reduced : outer_kept).push_back(dim);
      (dim.reduced ? rows : outer_kept_count) *= dim.size;
    }
    // A single long run becomes rows, which threads share.
    const std::int64_t piece = std::min(run & -run, kLongestPiece);
    if (plan.kept == 1 && rows == 1 && run > 4 * piece && piece >= kShortestPiece) {
      outer_reduced.push_back({run / piece, true, piece, 0});
      rows = std::exchange(run, piece) / piece;
    }
    const std::int64_t most_columns = run == 1 ? kMaximumChunk : kMaximumRuns;
    // Chunks of about the same size, so that threads have the same work.
    constexpr std::int64_t kLine = 16;
    chunks = std::max<std::int64_t>(1, (kept + most_columns - 1) / most_columns);
    chunk = std::max<std::int64_t>(1, (kept + chunks - 1) / chunks);
    if (chunks > 1) chunk = (chunk + kLine - 1) / kLine * kLine;
    const std::int64_t most =
        std::max<std::int64_t>(1, kMaximumPartials / std::max<std::int64_t>(1, plan.kept));
    const std::int64_t rows_of_split = kRowsPerSplit / std::max<std::int64_t>(1, run);
    const std::int64_t wanted = rows / std::max<std::int64_t>(1, rows_of_split);
    // Neither a split nor the sum of all splits adds up many values one by one.
    splits = std::clamp<std::int64_t>(std::min(wanted, std::max(kManySplits, rows / kRowsPerSplit)),
                                      1, most);
  }
};

std::int64_t offset_of(const std::vector<ReducePlan::Dimension>& dims, std::int64_t index) {
  std::int64_t offset = 0;
  for (std::size_t i = dims.size(); i-- > 0;) {
    offset += index % dims[i].size * dims[i].input_stride;
    index /= dims[i].size;
  }
  return offset;
}

/// Calls visit(x of the row) for the outer reduced positions [first, last).
template <class T, class Visit>
void for_rows(const Loops& loops, const T* x, std::int64_t first, std::int64_t last, Visit visit) {
  const std::int64_t size = loops.outer_reduced.empty() ? 1 : loops.outer_reduced.back().size;
  const std::int64_t stride =
      loops.outer_reduced.empty() ? 0 : loops.outer_reduced.back().input_stride;
  for (std::int64_t row = first; row < last;) {
    const T* from = x + offset_of(loops.outer_reduced, row);
    for (std::int64_t i = row % size; i < size && row < last; ++i, ++row, from += stride)
      visit(from);
  }
}

/// Few columns: their sums stay in registers.
template <class F, int kColumns, class T>
void reduce_columns(const Loops& loops, const T* x, std::int64_t first, std::int64_t last,
                    float* to) {
  const F combine;
  float sums[kColumns];
  for (float& sum : sums) sum = F::kStart;
  for_rows(loops, x, first, last, [&](const T* from) {
    for (int i = 0; i < kColumns; ++i) sums[i] = combine(sums[i], value_of(from[i]));
  });
  std::copy_n(sums, kColumns, to);
}

/// Reduces rows [first, last) of one chunk of the output into `to`.
template <class F, class T>
void reduce_chunk(const Loops& loops, const T* x, std::int64_t first, std::int64_t last,
                  std::int64_t count, float* to) {
  if (loops.run == 1 && count == 8) return reduce_columns<F, 8>(loops, x, first, last, to);
  if (loops.run == 1 && count == 16) return reduce_columns<F, 16>(loops, x, first, last, to);
  const F combine;
  float sums[kMaximumChunk];
  std::fill_n(sums, count, F::kStart);
  for_rows(loops, x, first, last, [&](const T* __restrict from) {
    if (loops.run == 1) {
      for (std::int64_t i = 0; i < count; ++i) sums[i] = combine(sums[i], value_of(from[i]));
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        sums[i] = combine(sums[i], reduce_run<F>(from + i * loops.kept_stride, loops.run));
      }
    }
  });
  std::copy_n(sums, count, to);
}

/// Reduces the partial results of the splits to y, unless there is one, which is y already.
template <class F>
void finish(std::int64_t splits, std::int64_t kept, const float* partials, float scale, float* y) {
  const F combine;
  if (splits > 1) std::copy_n(partials, kept, y);
  for (std::int64_t split = 1; split < splits; ++split) {
    const float* __restrict from = partials + split * kept;
    for (std::int64_t i = 0; i < kept; ++i) y[i] = combine(y[i], from[i]);
  }
  if (scale == 1) return;
  for (std::int64_t i = 0; i < kept; ++i) y[i] *= scale;
}

/// Reduces elements of type T; `narrow`: the result is rounded to bfloat16.
template <class F, class T = float>
std::unique_ptr<Kernel> reduction(const ReducePlan& plan, float scale = 1, bool narrow = false) {
  const Loops loops(plan);
  const std::int64_t kept = plan.kept;
  const std::int64_t elements = plan.kept * plan.reduced;
  const std::int64_t floats = (loops.splits > 1 ? loops.splits * kept : 0) + (narrow ? kept : 0);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        const T* x = in[0].as<const T>();
        auto* const workspace = reinterpret_cast<float*>(context.workspace);
        float* y = narrow ? workspace + (floats - kept) : out[0].as<float>();
        if (elements == 0) {
          std::fill_n(y, kept, scale == 1 ? F::kStart : std::numeric_limits<float>::quiet_NaN());
        } else {
          float* partials = loops.splits > 1 ? workspace : y;
          const std::int64_t tasks = loops.outer_kept_count * loops.chunks * loops.splits;
#pragma omp parallel for schedule(static) if (elements > kParallelElements)
          for (std::int64_t task = 0; task < tasks; ++task) {
            const std::int64_t split = task % loops.splits;
            const std::int64_t chunk = task / loops.splits % loops.chunks;
            const std::int64_t outer = task / loops.splits / loops.chunks;
            const std::int64_t first = chunk * loops.chunk;
            const std::int64_t count = std::min(loops.chunk, loops.kept - first);
            reduce_chunk<F>(
                loops, x + offset_of(loops.outer_kept, outer) + first * loops.kept_stride,
                loops.rows * split / loops.splits, loops.rows * (split + 1) / loops.splits, count,
                partials + split * kept + outer * loops.kept + first);
          }
          finish<F>(loops.splits, kept, partials, scale, y);
        }
        if (narrow) round_to_bfloat16(y, out[0].as<std::uint16_t>(), kept);
      },
      static_cast<std::size_t>(floats) * sizeof(float));
}

std::unique_ptr<Kernel> make_reduce(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  const ReducePlan plan = plan_of(request);
  if (adds_bfloat16(request)) {
    const double scale = op == "ReduceMean" ? 1.0 / static_cast<double>(plan.reduced) : 1.0;
    return reduction<Add, BFloat16Bits>(plan, static_cast<float>(scale),
                                        request.outputs[0].dtype == DType::kBFloat16);
  }
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  if (op == "ReduceMax") return reduction<Largest>(plan);
  if (op == "ReduceMin") return reduction<Smallest>(plan);
  if (op == "ReduceProd") return reduction<Multiply>(plan);
  if (op == "ReduceMean") {
    return reduction<Add>(plan, static_cast<float>(1.0 / static_cast<double>(plan.reduced)));
  }
  return reduction<Add>(plan);
}

/// ArgMax, ArgMin: the first of equal elements, or the last with select_last_index. Columns of the
/// inner axes are compared in parallel.
std::unique_ptr<Kernel> make_arg(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  const auto [outer, size, inner, maximum, last] = arg_rule(request);
  const float sign = maximum ? 1.0F : -1.0F;
  constexpr std::int64_t kColumns = 64;
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const std::int64_t blocks = (inner + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(static) if (outer * size * inner > kParallelElements)
        for (std::int64_t task = 0; task < outer * blocks; ++task) {
          const std::int64_t first = task % blocks * kColumns;
          const std::int64_t count = std::min(kColumns, inner - first);
          const float* x = in[0].as<float>() + task / blocks * size * inner + first;
          std::int64_t* to = out[0].as<std::int64_t>() + task / blocks * inner + first;
          float best[kColumns];
          for (std::int64_t i = 0; i < count; ++i) {
            best[i] = sign * x[i];
            to[i] = 0;
          }
          for (std::int64_t k = 1; k < size; ++k) {
            for (std::int64_t i = 0; i < count; ++i) {
              const float value = sign * x[k * inner + i];
              const bool better = value > best[i] || (last && value == best[i]);
              best[i] = better ? value : best[i];
              to[i] = better ? k : to[i];
            }
          }
        }
      });
}

constexpr KernelEntry kKernels[] = {
    {"ArgMax", make_arg},        {"ArgMin", make_arg},       {"ReduceMax", make_reduce},
    {"ReduceMean", make_reduce}, {"ReduceMin", make_reduce}, {"ReduceProd", make_reduce},
    {"ReduceSum", make_reduce},  {"SumTo", make_reduce},
};

}  // namespace

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

bool adds_bfloat16(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  const DType to = request.outputs[0].dtype;
  return (op == "ReduceMean" || op == "ReduceSum" || op == "SumTo") &&
         request.inputs[0].dtype == DType::kBFloat16 &&
         (to == DType::kBFloat16 || to == DType::kFloat32);
}

}  // namespace pipetrain::reduce
