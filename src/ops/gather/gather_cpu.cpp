// Gathers of whole slices, split over the threads. The gradient splits columns, not indices, so
// that every sum is added in index order for any number of threads; for an embedding that is
// accumulated over micro-batches it writes only the rows in use.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "graph/op.h"
#include "ops/gather/gather.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/narrow_cpu.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;
constexpr std::int64_t kParallelElements = 1 << 15;

std::size_t index_bytes(const SliceGather& gather) {
  return sizeof(std::int64_t) * static_cast<std::size_t>(gather.tuples());
}

/// The data slice that result slice `index` is copied from.
std::int64_t source_of(const SliceGather& gather, const std::int64_t* rows, std::int64_t index) {
  const std::int64_t outer = index / gather.count;
  return outer * gather.rows() + rows[gather.shared ? index % gather.count : index];
}

/// Result slices [first, first + length) are the data slices from `row` on.
struct Run {
  std::int64_t first, row, length;
};

/// Whether all repetitions use the same indices, as in reflection padding, and there are enough for
/// all threads: runs of consecutive indices are copied and summed at once.
bool has_runs(const SliceGather& gather) {
  return gather.shared && gather.outer > 1 && gather.outer >= omp_get_max_threads();
}

std::size_t run_bytes(const SliceGather& gather) {
  return sizeof(Run) * static_cast<std::size_t>(gather.count);
}

/// The runs in the order of the result, in the workspace behind the rows.
std::span<const Run> find_runs(const SliceGather& gather, std::int64_t* rows) {
  auto* runs = reinterpret_cast<Run*>(rows + gather.tuples());
  std::size_t found = 0;
  for (std::int64_t i = 0; i < gather.count; ++i) {
    if (found > 0 && rows[i] == runs[found - 1].row + runs[found - 1].length) {
      ++runs[found - 1].length;
    } else {
      runs[found++] = {i, rows[i], 1};
    }
  }
  return {runs, found};
}

void copy_runs(const SliceGather& gather, std::span<const Run> runs, std::size_t bytes,
               const std::byte* data, std::byte* result) {
  const std::int64_t elements = gather.outer * gather.count * gather.slice;
#pragma omp parallel for schedule(static) if (elements > kParallelElements)
  for (std::int64_t o = 0; o < gather.outer; ++o) {
    const std::byte* from = data + static_cast<std::size_t>(o * gather.rows()) * bytes;
    std::byte* to = result + static_cast<std::size_t>(o * gather.count) * bytes;
    for (const Run& run : runs) {
      std::memcpy(to + static_cast<std::size_t>(run.first) * bytes,
                  from + static_cast<std::size_t>(run.row) * bytes,
                  static_cast<std::size_t>(run.length) * bytes);
    }
  }
}

std::unique_ptr<Kernel> make_slices(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const SliceGather gather = slice_gather(request.node.op->name, request.node.attributes,
                                          request.inputs[0].shape, request.inputs[1].shape);
  const std::size_t bytes =
      size_of(request.inputs[0].dtype) * static_cast<std::size_t>(gather.slice);
  return make_kernel(
      [gather, bytes, runs = has_runs(gather)](Tensors in, Tensors out, const RunContext& context) {
        auto* rows = reinterpret_cast<std::int64_t*>(context.workspace);
        resolve_rows(gather, in[1], rows);
        const auto* data = in[0].as<std::byte>();
        auto* result = out[0].as<std::byte>();
        if (runs) return copy_runs(gather, find_runs(gather, rows), bytes, data, result);
        const std::int64_t slices = gather.outer * gather.count;
#pragma omp parallel for schedule(static) if (slices * gather.slice > kParallelElements)
        for (std::int64_t i = 0; i < slices; ++i) {
          const auto from = static_cast<std::size_t>(source_of(gather, rows, i));
          std::memcpy(result + static_cast<std::size_t>(i) * bytes, data + from * bytes, bytes);
        }
      },
      index_bytes(gather) + (has_runs(gather) ? run_bytes(gather) : 0));
}

/// A slice of the gradient and the result row that it is added to.
struct RowOfSlice {
  std::int64_t row, slice;
  bool operator<(const RowOfSlice& other) const {
    return row != other.row ? row < other.row : slice < other.slice;
  }
};

/// A gradient stored in float, or in a narrow type with its conversion.
struct Slices {
  const void* data;
  std::int64_t slice;  // elements
  void (*widen)(const std::uint16_t*, float*, std::int64_t);

  /// Elements [begin, begin + count) of a slice; `room` is a buffer of `count` floats.
  const float* at(std::int64_t index, std::int64_t begin, std::int64_t count, float* room) const {
    const std::int64_t place = index * slice + begin;
    if (!widen) return static_cast<const float*>(data) + place;
    widen(static_cast<const std::uint16_t*>(data) + place, room, count);
    return room;
  }
};

/// Adds up the slices of one row in order, then adds the sum to the row.
void add_slices(const RowOfSlice* from, const RowOfSlice* end, const Slices& dy,
                float* __restrict row, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kColumns = 256;
  float sums[kColumns], room[kColumns];
  for (std::int64_t begin = first; begin < last; begin += kColumns) {
    const std::int64_t count = std::min(kColumns, last - begin);
    std::fill_n(sums, count, 0.0F);
    for (const RowOfSlice* one = from; one < end; ++one) {
      const float* __restrict x = dy.at(one->slice, begin, count, room);
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) sums[i] += x[i];
    }
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) row[begin + i] += sums[i];
  }
}

class SlicesGradient final : public RowAddingKernel {
 public:
  SlicesGradient(const SliceGather& gather, DType gradient) : gather_(gather) {
    if (gradient == DType::kBFloat16) widen_ = widen_bfloat16;
    if (gradient == DType::kFloat16) widen_ = widen_float16;
  }

  std::size_t workspace_bytes() const override {
    if (sums_repetitions()) {
      return index_bytes(gather_) + run_bytes(gather_) +
             sizeof(float) * static_cast<std::size_t>(buffer() * threads_);
    }
    return index_bytes(gather_) + sizeof(RowOfSlice) * static_cast<std::size_t>(slices()) +
           sizeof(std::int64_t) * static_cast<std::size_t>(counts() ? rows() : 0);
  }
  std::int64_t rows() const override { return gather_.outer * gather_.rows(); }
  void share(TouchedRows& rows) override { touched_ = &rows; }

  void run(Tensors in, Tensors out, const RunContext& context) override {
    add(in, out, context, /*anew=*/true);
  }
  void run_adding(Tensors in, Tensors out, const RunContext& context) override {
    add(in, out, context, /*anew=*/false);
  }

 private:
  std::int64_t slices() const { return gather_.outer * gather_.count; }

  void add(Tensors in, Tensors out, const RunContext& context, bool anew) {
    auto* rows = reinterpret_cast<std::int64_t*>(context.workspace);
    resolve_rows(gather_, in[1], rows);
    if (sums_repetitions()) {
      if (touched_) touched_->set_all();
      return add_repetitions(rows, in[0], anew, out[0]);
    }
    auto* sorted = reinterpret_cast<RowOfSlice*>(context.workspace + index_bytes(gather_));
    sort(rows, sorted);
    auto* sum = out[0].as<float>();
    if (anew) clear(sum, out[0].count());
    for (std::int64_t i = 0; touched_ && i < slices(); ++i) touched_->add(sorted[i].row);
    const std::int64_t threads = omp_get_max_threads();
    const std::int64_t share = (gather_.slice + threads - 1) / threads;
    const std::int64_t columns = std::max<std::int64_t>(16, (share + 15) / 16 * 16);
    const std::int64_t blocks = (gather_.slice + columns - 1) / columns;
    const Slices dy{in[0].data, gather_.slice, widen_};
#pragma omp parallel for schedule(static) if (in[0].count() > kParallelElements)
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t last = std::min(gather_.slice, (block + 1) * columns);
      for (std::int64_t i = 0; i < slices();) {
        std::int64_t end = i + 1;
        while (end < slices() && sorted[end].row == sorted[i].row) ++end;
        add_slices(sorted + i, sorted + end, dy, sum + sorted[i].row * gather_.slice,
                   block * columns, last);
        i = end;
      }
    }
  }

  /// Floats of a thread: the sums of a repetition, and its gradient where that is widened.
  std::int64_t buffer() const {
    return gather_.slice * (gather_.rows() + (widen_ ? gather_.count : 0));
  }
  /// Whether each repetition is summed by itself, where it stays in a cache.
  bool sums_repetitions() const { return runs_ && buffer() <= kMostOfRepetition; }

  void add_repetitions(std::int64_t* rows, const Tensor& gradient, bool anew, const Tensor& out) {
    const std::span<const Run> runs = find_runs(gather_, rows);
    auto* buffers =
        reinterpret_cast<float*>(rows + gather_.tuples()) + run_bytes(gather_) / sizeof(float);
    const Slices dy{gradient.data, gather_.slice, widen_};
    const std::int64_t count = gather_.rows() * gather_.slice;
#pragma omp parallel for schedule(static) \
    num_threads(threads_) if (gradient.count() > kParallelElements)
    for (std::int64_t o = 0; o < gather_.outer; ++o) {
      float* __restrict sums = buffers + omp_get_thread_num() * buffer();
      float* const room = sums + count;
      std::fill_n(sums, count, 0.0F);
      for (const Run& run : runs) {
        const std::int64_t length = run.length * gather_.slice;
        const float* __restrict from = dy.at(o * gather_.count + run.first, 0, length, room);
        float* __restrict to = sums + run.row * gather_.slice;
#pragma omp simd
        for (std::int64_t i = 0; i < length; ++i) to[i] += from[i];
      }
      float* __restrict result = out.as<float>() + o * count;
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) result[i] = anew ? sums[i] : result[i] + sums[i];
    }
  }

  /// Whether sorting by counting is faster: rows have a slice or more on average.
  bool counts() const { return rows() <= slices(); }

  /// The slices of each row, in their order.
  void sort(const std::int64_t* rows_of, RowOfSlice* sorted) const {
    if (!counts()) {
      for (std::int64_t i = 0; i < slices(); ++i) sorted[i] = {source_of(gather_, rows_of, i), i};
      std::sort(sorted, sorted + slices());
      return;
    }
    auto* const ends = reinterpret_cast<std::int64_t*>(sorted + slices());  // of the rows' slices
    std::fill_n(ends, rows(), std::int64_t{0});
    for (std::int64_t i = 0; i < slices(); ++i) ++ends[source_of(gather_, rows_of, i)];
    std::partial_sum(ends, ends + rows(), ends);
    for (std::int64_t i = slices() - 1; i >= 0; --i) {
      const std::int64_t row = source_of(gather_, rows_of, i);
      sorted[--ends[row]] = {row, i};
    }
  }

  void clear(float* sum, std::int64_t count) {
    const bool few = touched_ && !touched_->all();
    if (few) {
      for (const std::int64_t row : touched_->list())
        std::fill_n(sum + row * gather_.slice, gather_.slice, 0.0F);
    } else {
#pragma omp parallel for simd schedule(static) if (count > kParallelElements)
      for (std::int64_t i = 0; i < count; ++i) sum[i] = 0;
    }
    if (touched_) touched_->clear();
  }

  static constexpr std::int64_t kMostOfRepetition = 1 << 16;

  SliceGather gather_;
  int threads_ = omp_get_max_threads();
  bool runs_ = has_runs(gather_);
  void (*widen_)(const std::uint16_t*, float*, std::int64_t) = nullptr;
  TouchedRows* touched_ = nullptr;
};

std::unique_ptr<Kernel> make_slices_gradient(const KernelRequest& request) {
  if (!gather_gradient_adds(request)) return nullptr;
  const std::string_view op = request.node.op->name == "GatherGrad" ? "Gather" : "GatherND";
  return std::make_unique<SlicesGradient>(
      slice_gather(op, request.node.attributes, request.outputs[0].shape, request.inputs[1].shape),
      request.inputs[0].dtype);
}

void copy_floats(const float* from, float* to, std::int64_t count) {
#pragma omp parallel for simd schedule(static) if (count > kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}

/// The offsets of all positions, in parallel, in the workspace.
const std::int64_t* offsets_of(const ElementGather& gather, const Tensor& indices,
                               const RunContext& context) {
  constexpr std::int64_t kEach = 1 << 14;
  auto* offsets = reinterpret_cast<std::int64_t*>(context.workspace);
  const std::int64_t count = indices.count();
  std::int64_t wrong = count;
#pragma omp parallel for schedule(static) reduction(min : wrong) if (count > kParallelElements)
  for (std::int64_t first = 0; first < count; first += kEach) {
    const std::int64_t last = std::min(count, first + kEach);
    const std::int64_t stopped = resolve_elements(gather, indices, first, last, offsets);
    if (stopped < last) wrong = std::min(wrong, stopped);
  }
  check_elements(gather, indices, wrong);
  return offsets;
}

/// Into how many columns at a time a row is cut, so that all threads have some although there are
/// only `rows` tasks otherwise.
std::int64_t columns_of_task(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kLine = 16, kMost = 512;
  const std::int64_t threads = omp_get_max_threads();
  if (rows >= threads) return kMost;
  const std::int64_t rounds = (columns + kMost * threads - 1) / (kMost * threads);
  const std::int64_t pieces = std::max<std::int64_t>(1, rounds * threads);
  const std::int64_t share = (columns + pieces - 1) / pieces;
  return std::max(kLine, (share + kLine - 1) / kLine * kLine);
}

/// Calls visit(first, last) for runs of positions, in parallel. Positions that may name the same
/// element are visited by one thread, in their order.
template <class Visit>
void for_runs(const ElementGather& gather, Visit visit) {
  const Shape& shape = gather.indices;
  const auto axis = static_cast<std::size_t>(gather.axis);
  const std::int64_t outer = shape.count(0, axis), size = shape[axis];
  const std::int64_t inner = shape.count(axis + 1, shape.rank());
  const std::int64_t most = columns_of_task(outer, inner), pieces = (inner + most - 1) / most;
#pragma omp parallel for schedule(static) if (shape.count() > kParallelElements)
  for (std::int64_t task = 0; task < outer * pieces; ++task) {
    const std::int64_t begin = task % pieces * most;
    const std::int64_t columns = std::min(most, inner - begin);
    for (std::int64_t k = 0; k < size; ++k) {
      const std::int64_t first = (task / pieces * size + k) * inner + begin;
      visit(first, first + columns);
    }
  }
}

template <class T>
void gather_elements(const std::int64_t* offsets, Tensors in, Tensors out) {
  const T* __restrict x = in[0].as<T>();
  T* __restrict y = out[0].as<T>();
  const std::int64_t count = out[0].count();
#pragma omp parallel for schedule(static) if (count > kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[offsets[i]];
}

std::unique_ptr<Kernel> make_elements(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const std::size_t size = size_of(request.inputs[0].dtype);
  if (size != 4 && size != 8) return nullptr;
  const auto loop = size == 4 ? gather_elements<std::uint32_t> : gather_elements<std::uint64_t>;
  return make_kernel(
      [loop, gather = element_gather(request.node.attributes, request.inputs[0].shape,
                                     request.inputs[1].shape)](Tensors in, Tensors out,
                                                               const RunContext& context) {
        loop(offsets_of(gather, in[1], context), in, out);
      },
      sizeof(std::int64_t) * static_cast<std::size_t>(request.inputs[1].count()));
}

std::unique_ptr<Kernel> make_elements_gradient(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [gather = element_gather(request.node.attributes, request.outputs[0].shape,
                               request.inputs[1].shape)](Tensors in, Tensors out,
                                                         const RunContext& context) {
        const std::int64_t* offsets = offsets_of(gather, in[1], context);
        const float* dy = in[0].as<float>();
        float* sum = out[0].as<float>();
        const std::int64_t count = out[0].count();
#pragma omp parallel for simd schedule(static) if (count > kParallelElements)
        for (std::int64_t i = 0; i < count; ++i) sum[i] = 0;
        for_runs(gather, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t i = first; i < last; ++i) sum[offsets[i]] += dy[i];
        });
      },
      sizeof(std::int64_t) * static_cast<std::size_t>(request.inputs[1].count()));
}

/// Writes or adds `count` floats.
void place(bool add, const float* __restrict from, float* __restrict to, std::int64_t count) {
  if (!add) return static_cast<void>(std::copy_n(from, count, to));
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

/// "none" or "add"; the other reductions run with the reference kernel.
bool places(const KernelRequest& request) {
  const std::string reduction = request.node.attributes.text("reduction", "none");
  return is_row_major(request) && request.inputs[0].dtype == DType::kFloat32 &&
         (reduction == "none" || reduction == "add");
}

std::unique_ptr<Kernel> make_scatter_elements(const KernelRequest& request) {
  if (!places(request)) return nullptr;
  const bool add = request.node.attributes.text("reduction", "none") == "add";
  return make_kernel(
      [add, gather = element_gather(request.node.attributes, request.inputs[0].shape,
                                    request.inputs[1].shape)](Tensors in, Tensors out,
                                                              const RunContext& context) {
        const std::int64_t* offsets = offsets_of(gather, in[1], context);
        const float* updates = in[2].as<float>();
        float* y = out[0].as<float>();
        copy_floats(in[0].as<float>(), y, out[0].count());
        for_runs(gather, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t i = first; i < last; ++i)
            y[offsets[i]] = add ? y[offsets[i]] + updates[i] : updates[i];
        });
      },
      sizeof(std::int64_t) * static_cast<std::size_t>(request.inputs[1].count()));
}

std::unique_ptr<Kernel> make_scatter_nd(const KernelRequest& request) {
  if (!places(request)) return nullptr;
  const bool add = request.node.attributes.text("reduction", "none") == "add";
  const SliceGather gather =
      slice_gather("GatherND", {}, request.inputs[0].shape, request.inputs[1].shape);
  return make_kernel(
      [gather, add](Tensors in, Tensors out, const RunContext& context) {
        auto* rows = reinterpret_cast<std::int64_t*>(context.workspace);
        resolve_rows(gather, in[1], rows);
        copy_floats(in[0].as<float>(), out[0].as<float>(), out[0].count());
        // Threads share out the columns: each writes its own of all slices, in their order.
        const std::int64_t slices = gather.outer * gather.count;
        const std::int64_t most = columns_of_task(1, gather.slice);
        const std::int64_t pieces = (gather.slice + most - 1) / most;
#pragma omp parallel for schedule(static) if (slices * gather.slice > kParallelElements)
        for (std::int64_t piece = 0; piece < pieces; ++piece) {
          const std::int64_t begin = piece * most;
          const std::int64_t columns = std::min(most, gather.slice - begin);
          for (std::int64_t i = 0; i < slices; ++i) {
            place(add, in[2].as<float>() + i * gather.slice + begin,
                  out[0].as<float>() + source_of(gather, rows, i) * gather.slice + begin, columns);
          }
        }
      },
      index_bytes(gather));
}

constexpr KernelEntry kKernels[] = {
    {"Gather", make_slices},
    {"GatherElements", make_elements},
    {"GatherElementsGrad", make_elements_gradient},
    {"GatherGrad", make_slices_gradient},
    {"GatherND", make_slices},
    {"GatherNDGrad", make_slices_gradient},
    {"ScatterElements", make_scatter_elements},
    {"ScatterND", make_scatter_nd},
};

}  // namespace

bool gather_gradient_adds(const KernelRequest& request) {
  const DType dy = request.inputs[0].dtype;
  return is_row_major(request) && request.outputs[0].dtype == DType::kFloat32 &&
         (dy == DType::kFloat32 || dy == DType::kBFloat16 || dy == DType::kFloat16);
}

std::span<const KernelEntry> gather_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
