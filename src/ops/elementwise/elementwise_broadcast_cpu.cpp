// Operators of two broadcast operands, and Where: rows in which an operand runs with stride 0 or 1.
#include <omp.h>

#include <algorithm>

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/elementwise/elementwise_loops_cpu.h"
#include "ops/kernel/broadcast_plan.h"

namespace pipetrain::elementwise {
namespace {

using Made = std::unique_ptr<Kernel>;
using Bool = std::uint8_t;

/// A broadcast plan split into tiles of rows and columns; a cursor steps through the outer
/// dimensions.
class Tiles {
 public:
  explicit Tiles(BroadcastPlan plan) : plan_(std::move(plan)) {
    if (plan_.dims.size() == 1) {
      plan_.dims.insert(plan_.dims.begin(), 1);
      for (auto& strides : plan_.strides) strides.insert(strides.begin(), 0);
    }
    rank_ = plan_.dims.size();
    rows_ = plan_.dims[rank_ - 2];
    columns_ = plan_.dims[rank_ - 1];
    tile_columns_ = std::clamp<std::int64_t>(columns_, 1, kTileElements);
    tile_rows_ = std::max<std::int64_t>(1, kTileElements / tile_columns_);
    row_tiles_ = (rows_ + tile_rows_ - 1) / tile_rows_;
    column_tiles_ = (columns_ + tile_columns_ - 1) / tile_columns_;
    count_ = plan_.count();
  }

  std::int64_t column_stride(std::size_t operand) const {
    return plan_.strides[operand][rank_ - 1];
  }
  std::int64_t row_stride(std::size_t operand) const { return plan_.strides[operand][rank_ - 2]; }
  std::int64_t output_row_stride() const { return columns_; }

  /// Calls body(output offset, operand offsets, rows, columns) for every tile.
  template <std::size_t kOperands, class Body>
  void run(Body body) const {
    if (count_ == 0) return;
    const std::int64_t inner = row_tiles_ * column_tiles_;
    const std::int64_t tiles = count_ / (rows_ * columns_) * inner;
#pragma omp parallel for schedule(static) if (count_ > kParallelElements)
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int64_t outer = tile / inner;
      const std::int64_t row = tile % inner / column_tiles_ * tile_rows_;
      const std::int64_t column = tile % column_tiles_ * tile_columns_;
      std::int64_t offsets[kOperands] = {};
      std::int64_t rest = outer;
      for (std::size_t axis = rank_ - 2; axis-- > 0;) {
        const std::int64_t index = rest % plan_.dims[axis];
        rest /= plan_.dims[axis];
        for (std::size_t k = 0; k < kOperands; ++k) offsets[k] += index * plan_.strides[k][axis];
      }
      for (std::size_t k = 0; k < kOperands; ++k) {
        offsets[k] += row * row_stride(k) + column * column_stride(k);
      }
      body(outer * rows_ * columns_ + row * columns_ + column, offsets,
           std::min(tile_rows_, rows_ - row), std::min(tile_columns_, columns_ - column));
    }
  }

 private:
  BroadcastPlan plan_;
  std::size_t rank_;
  std::int64_t rows_, columns_, tile_rows_, tile_columns_, row_tiles_, column_tiles_, count_;
};

/// A stride known to the compiler (0 or 1), or at run time (-1).
template <int kStride>
std::int64_t at(std::int64_t i, std::int64_t stride) {
  if constexpr (kStride == 0) return 0;
  if constexpr (kStride == 1) return i;
  return i * stride;
}

/// Rows of two operands and of the result; strides are in elements.
struct Rows {
  const void* a;
  const void* b;
  void* y;
  std::int64_t rows, columns;
  std::int64_t a_row, b_row, y_row;
};
using RowLoop = void (*)(const ErasedFunction&, const Rows&);

/// Rows of one function; kA and kB are the strides of its operands, 0 or 1.
template <int kA, int kB, class In, class Out, class F>
void row_loop(const ErasedFunction& function, const Rows& at) {
  const F f = function.as<F>();
  for (std::int64_t row = 0; row < at.rows; ++row) {
    const In* __restrict a = static_cast<const In*>(at.a) + row * at.a_row;
    const In* __restrict b = static_cast<const In*>(at.b) + row * at.b_row;
    Out* __restrict y = static_cast<Out*>(at.y) + row * at.y_row;
    for (std::int64_t i = 0; i < at.columns; ++i) {
      y[i] = static_cast<Out>(f(a[kA ? i : 0], b[kB ? i : 0]));
    }
  }
}

/// The loops of one function over rows.
struct RowLoops {
  RowLoop both = nullptr;
  RowLoop left = nullptr;   // the right operand is constant in each row
  RowLoop right = nullptr;  // the left operand is constant in each row
  ErasedFunction function;

  template <class In, class Out, class F>
  static RowLoops of(F f) {
    return {row_loop<1, 1, In, Out, F>, row_loop<1, 0, In, Out, F>, row_loop<0, 1, In, Out, F>,
            ErasedFunction(f)};
  }
  /// Expensive functions, for which a constant operand is first copied to every element of a block.
  template <class In, class Out, class F>
  static RowLoops only_both(F f) {
    return {row_loop<1, 1, In, Out, F>, nullptr, nullptr, ErasedFunction(f)};
  }
};

/// Copies `count` elements of 1, 4 or 8 bytes that are `stride` elements apart.
void collect(const std::byte* from, std::int64_t stride, std::int64_t size, std::byte* to,
             std::int64_t count) {
  const auto copy = [&]<class T>(T) {
    const T* x = reinterpret_cast<const T*>(from);
    T* y = reinterpret_cast<T*>(to);
    for (std::int64_t i = 0; i < count; ++i) y[i] = x[i * stride];
  };
  if (size == 1) copy(std::uint8_t{});
  if (size == 4) copy(std::uint32_t{});
  if (size == 8) copy(std::uint64_t{});
}

class BroadcastKernel final : public Kernel {
 public:
  BroadcastKernel(const KernelRequest& request, const RowLoops& loops)
      : tiles_(plan_broadcast(request.outputs[0], request.inputs)),
        loops_(loops),
        in_size_(static_cast<std::int64_t>(size_of(request.inputs[0].dtype))),
        out_size_(static_cast<std::int64_t>(size_of(request.outputs[0].dtype))) {
    const std::int64_t a = tiles_.column_stride(0);
    const std::int64_t b = tiles_.column_stride(1);
    if (a == 1 && b == 1) direct_ = loops.both;
    if (a == 1 && b == 0) direct_ = loops.left;
    if (a == 0 && b == 1) direct_ = loops.right;
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) override {
    const auto* a = in[0].as<std::byte>();
    const auto* b = in[1].as<std::byte>();
    auto* y = out[0].as<std::byte>();
    tiles_.run<2>([this, a, b, y](std::int64_t to, const std::int64_t* from, std::int64_t rows,
                                  std::int64_t columns) {
      run_tile({a + from[0] * in_size_, b + from[1] * in_size_, y + to * out_size_, rows, columns,
                tiles_.row_stride(0), tiles_.row_stride(1), tiles_.output_row_stride()});
    });
  }

 private:
  void run_tile(const Rows& tile) const {
    if (direct_) return direct_(loops_.function, tile);
    constexpr std::int64_t kBlock = 256;
    alignas(64) std::byte left[8 * kBlock];
    alignas(64) std::byte right[8 * kBlock];
    const std::int64_t a_stride = tiles_.column_stride(0), b_stride = tiles_.column_stride(1);
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const auto* a = static_cast<const std::byte*>(tile.a) + row * tile.a_row * in_size_;
      const auto* b = static_cast<const std::byte*>(tile.b) + row * tile.b_row * in_size_;
      auto* y = static_cast<std::byte*>(tile.y) + row * tile.y_row * out_size_;
      for (std::int64_t first = 0; first < tile.columns; first += kBlock) {
        const std::int64_t count = std::min(kBlock, tile.columns - first);
        collect(a + first * a_stride * in_size_, a_stride, in_size_, left, count);
        collect(b + first * b_stride * in_size_, b_stride, in_size_, right, count);
        loops_.both(loops_.function, {left, right, y + first * out_size_, 1, count, 0, 0, 0});
      }
    }
  }

  Tiles tiles_;
  RowLoops loops_;
  std::int64_t in_size_, out_size_;
  RowLoop direct_ = nullptr;
};

/// Arithmetic and comparisons of float32, logic of bool, and the int64 operations that index
/// computations need.
RowLoops find_loops(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  const DType in = request.inputs[0].dtype;
  RowLoops loops;
  if (in == DType::kFloat32 && (op == "Pow" || op == "Mod")) {
    visit_arithmetic<float>(op, request.node.attributes, [&](auto f) {
      if constexpr (std::is_same_v<decltype(f), Pow<float>> ||
                    std::is_same_v<decltype(f), Mod<float>>) {
        loops = RowLoops::only_both<float, float>(f);
      }
    });
  } else if (in == DType::kFloat32) {
    visit_arithmetic<float>(op, request.node.attributes, [&](auto f) {
      if constexpr (!std::is_same_v<decltype(f), Pow<float>> &&
                    !std::is_same_v<decltype(f), Mod<float>>) {
        loops = RowLoops::of<float, float>(f);
      }
    });
    visit_comparison<float>(op, [&](auto f) { loops = RowLoops::of<float, Bool>(f); });
  }
  if (in == DType::kInt64) {
    visit_comparison<std::int64_t>(
        op, [&](auto f) { loops = RowLoops::only_both<std::int64_t, Bool>(f); });
    if (op == "Add") loops = RowLoops::only_both<std::int64_t, std::int64_t>(Add<std::int64_t>{});
    if (op == "Mul") loops = RowLoops::only_both<std::int64_t, std::int64_t>(Mul<std::int64_t>{});
  }
  if (in == DType::kBool) {
    visit_logic(op, [&](auto f) { loops = RowLoops::only_both<Bool, Bool>(f); });
    if (op == "Equal") loops = RowLoops::only_both<Bool, Bool>(Equal<Bool>{});
  }
  return loops;
}

template <int kC, int kA, int kB>
Made where_kernel(Tiles tiles) {
  return make_kernel(
      [tiles](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const Bool* condition = in[0].as<Bool>();
        const float* a = in[1].as<float>();
        const float* b = in[2].as<float>();
        float* y = out[0].as<float>();
        const std::int64_t y_row = tiles.output_row_stride();
        tiles.run<3>([=, &tiles](std::int64_t to, const std::int64_t* from, std::int64_t rows,
                                 std::int64_t columns) {
          const std::int64_t c_column = tiles.column_stride(0);
          const std::int64_t a_column = tiles.column_stride(1);
          const std::int64_t b_column = tiles.column_stride(2);
          for (std::int64_t r = 0; r < rows; ++r) {
            const Bool* __restrict c = condition + from[0] + r * tiles.row_stride(0);
            const float* __restrict x = a + from[1] + r * tiles.row_stride(1);
            const float* __restrict z = b + from[2] + r * tiles.row_stride(2);
            float* __restrict w = y + to + r * y_row;
            for (std::int64_t i = 0; i < columns; ++i) {
              // Both are loaded first, so that the compiler emits a blend and not a branch.
              const float yes = x[at<kA>(i, a_column)];
              const float no = z[at<kB>(i, b_column)];
              w[i] = c[at<kC>(i, c_column)] ? yes : no;
            }
          }
        });
      });
}

}  // namespace

Made make_cpu_broadcast(const KernelRequest& request) {
  const RowLoops loops = find_loops(request);
  if (!loops.both) return nullptr;
  return std::make_unique<BroadcastKernel>(request, loops);
}

Made make_cpu_where(const KernelRequest& request) {
  if (request.outputs[0].dtype != DType::kFloat32) return nullptr;
  const Tiles tiles(plan_broadcast(request.outputs[0], request.inputs));
  const auto is = [&](std::int64_t c, std::int64_t a, std::int64_t b) {
    return tiles.column_stride(0) == c && tiles.column_stride(1) == a &&
           tiles.column_stride(2) == b;
  };
  if (is(1, 1, 1)) return where_kernel<1, 1, 1>(tiles);
  if (is(1, 0, 1)) return where_kernel<1, 0, 1>(tiles);
  if (is(1, 1, 0)) return where_kernel<1, 1, 0>(tiles);
  if (is(0, 1, 1)) return where_kernel<0, 1, 1>(tiles);
  return where_kernel<-1, -1, -1>(tiles);
}

}  // namespace pipetrain::elementwise
