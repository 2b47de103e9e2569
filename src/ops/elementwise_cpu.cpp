// Element-wise operators over float32 as loops that become vector code: flat where the operands lie
// alike, and with rows of stride 0 or 1 where one is broadcast. Threads share the work only where a
// tensor exceeds the caches of a core.
#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "ops/broadcast_plan.h"
#include "ops/elementwise.h"
#include "ops/elementwise_functors.h"
#include "ops/vector_math_cpu.h"

namespace pipetrain::elementwise {
namespace {

using Made = std::unique_ptr<Kernel>;
using Bool = std::uint8_t;

constexpr std::int64_t kParallelElements = 65536;
constexpr std::int64_t kTileElements = 32768;

/// Functions without branches instead of the C library's.
struct VectorMath {
  static float exp(float x) { return vector_math::exp(x); }
  static float log(float x) { return vector_math::log(x); }
  static float tanh(float x) { return vector_math::tanh(x); }
  static float erf(float x) { return vector_math::erf(x); }
  static float sigmoid(float x) { return vector_math::sigmoid(x); }
  /// Φ(-t) = e^(-t^2 / 2) k P(k) with k = 1 / (1 + 0.34 t): one exponential for the function and
  /// its derivative. P is minimax over t in [0, 6.5] (relative error 5e-7 in float); beyond, Φ(-t)
  /// < 1e-10.
  static float normal_below(float x, float& bell) {
    const float k = 1 / (1 + 0.34F * vector_math::absolute(x));
    float p = 0.04573251708560875F;
    p = p * k - 0.20474963595126822F;
    p = p * k + 0.27203692711072053F;
    p = p * k - 0.03847926105520981F;
    p = p * k + 0.1606852392149109F;
    p = p * k + 0.1286293745616571F;
    p = p * k + 0.13614473796936907F;
    bell = vector_math::exp_nonpositive(-0.5F * x * x);
    const float beyond = p * k * bell;
    return x > 0 ? 1 - beyond : beyond;
  }
  static float softplus(float x) {
    return (x > 0 ? x : 0) + vector_math::log1p(vector_math::exp(-vector_math::absolute(x)));
  }
};

/// Calls body(first, count) for consecutive pieces of [0, count).
template <class Body>
void for_pieces(std::int64_t count, Body body) {
  const std::int64_t pieces = (count + kTileElements - 1) / kTileElements;
#pragma omp parallel for schedule(static) if (count > kParallelElements)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const std::int64_t first = piece * kTileElements;
    body(first, std::min(kTileElements, count - first));
  }
}

template <class Out, class F>
Made map_kernel(F f) {
  return make_kernel(
      [f](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const float* x = in[0].as<float>();
        Out* y = out[0].as<Out>();
        for_pieces(out[0].count(), [=](std::int64_t first, std::int64_t count) {
          const float* __restrict from = x + first;
          Out* __restrict to = y + first;
          for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(f(from[i]));
        });
      });
}

Made make_unary(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  Made made;
  visit_unary<float, VectorMath>(request.node.op->name, request.node.attributes,
                                 [&](auto f) { made = map_kernel<float>(f); });
  return made;
}

Made make_is_nan(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return map_kernel<Bool>([](float x) { return x != x; });
}

Made make_gradient(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  Made made;
  visit_gradient<float, VectorMath>(request.node.op->name, request.node.attributes, [&](auto f) {
    made = make_kernel(
        [f](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          const float* dy = in[0].as<float>();
          const float* v = in[1].as<float>();
          float* dx = out[0].as<float>();
          for_pieces(out[0].count(), [=](std::int64_t first, std::int64_t count) {
            const float* __restrict a = dy + first;
            const float* __restrict b = v + first;
            float* __restrict to = dx + first;
            for (std::int64_t i = 0; i < count; ++i) to[i] = f(a[i], b[i]);
          });
        });
  });
  return made;
}

// --- broadcasting: tiles of the two innermost dimensions ---

/// A broadcast plan cut into tiles of rows and columns; the dimensions above are walked with a
/// cursor.
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

template <int kA, int kB, class Out, class F>
Made binary_kernel(Tiles tiles, F f) {
  return make_kernel(
      [f, tiles](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const float* a = in[0].as<float>();
        const float* b = in[1].as<float>();
        Out* y = out[0].as<Out>();
        const std::int64_t a_row = tiles.row_stride(0), a_column = tiles.column_stride(0);
        const std::int64_t b_row = tiles.row_stride(1), b_column = tiles.column_stride(1);
        const std::int64_t y_row = tiles.output_row_stride();
        tiles.run<2>([=](std::int64_t to, const std::int64_t* from, std::int64_t rows,
                         std::int64_t columns) {
          for (std::int64_t r = 0; r < rows; ++r) {
            const float* __restrict x = a + from[0] + r * a_row;
            const float* __restrict z = b + from[1] + r * b_row;
            Out* __restrict w = y + to + r * y_row;
            for (std::int64_t i = 0; i < columns; ++i) {
              w[i] = static_cast<Out>(f(x[at<kA>(i, a_column)], z[at<kB>(i, b_column)]));
            }
          }
        });
      });
}

template <class Out, class F>
Made make_binary(const KernelRequest& request, F f) {
  const Tiles tiles(plan_broadcast(request.outputs[0], request.inputs));
  const std::int64_t a = tiles.column_stride(0);
  const std::int64_t b = tiles.column_stride(1);
  if (a == 1 && b == 1) return binary_kernel<1, 1, Out>(tiles, f);
  if (a == 1 && b == 0) return binary_kernel<1, 0, Out>(tiles, f);
  if (a == 0 && b == 1) return binary_kernel<0, 1, Out>(tiles, f);
  return binary_kernel<-1, -1, Out>(tiles, f);
}

Made make_arithmetic(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  Made made;
  visit_arithmetic<float>(request.node.op->name, request.node.attributes,
                          [&](auto f) { made = make_binary<float>(request, f); });
  return made;
}

Made make_comparison(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  Made made;
  visit_comparison<float>(request.node.op->name,
                          [&](auto f) { made = make_binary<Bool>(request, f); });
  return made;
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
              // Both are loaded first, so that the choice is a blend and not a branch.
              const float yes = x[at<kA>(i, a_column)];
              const float no = z[at<kB>(i, b_column)];
              w[i] = c[at<kC>(i, c_column)] ? yes : no;
            }
          }
        });
      });
}

Made make_where(const KernelRequest& request) {
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

// --- Sum ---

Made make_sum(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        float* y = out[0].as<float>();
        for_pieces(out[0].count(), [=](std::int64_t start, std::int64_t length) {
          // Pieces that stay in the first cache while the operands are added one after another.
          constexpr std::int64_t kPiece = 2048;
          for (std::int64_t first = start; first < start + length; first += kPiece) {
            const std::int64_t count = std::min(kPiece, start + length - first);
            float* __restrict to = y + first;
            const float* __restrict a = in[0].as<float>() + first;
            if (in.size() == 1) std::copy_n(a, count, to);
            for (std::size_t k = 1; k < in.size(); ++k) {
              const float* __restrict b = in[k].as<float>() + first;
              if (k == 1) {
                for (std::int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
              } else {
                for (std::int64_t i = 0; i < count; ++i) to[i] += b[i];
              }
            }
          }
        });
      });
}

constexpr KernelEntry kKernels[] = {
    {"Abs", make_unary},
    {"Ceil", make_unary},
    {"Clip", make_unary},
    {"Cos", make_unary},
    {"Elu", make_unary},
    {"Erf", make_unary},
    {"Exp", make_unary},
    {"Floor", make_unary},
    {"Gelu", make_unary},
    {"HardSigmoid", make_unary},
    {"HardSwish", make_unary},
    {"IsNaN", make_is_nan},
    {"LeakyRelu", make_unary},
    {"Log", make_unary},
    {"Neg", make_unary},
    {"PowScalar", make_unary},
    {"Reciprocal", make_unary},
    {"Relu", make_unary},
    {"Round", make_unary},
    {"Sigmoid", make_unary},
    {"Sign", make_unary},
    {"Silu", make_unary},
    {"Sin", make_unary},
    {"Softplus", make_unary},
    {"Sqrt", make_unary},
    {"Tanh", make_unary},
    {"ClipGrad", make_gradient},
    {"EluGrad", make_gradient},
    {"ErfGrad", make_gradient},
    {"GeluGrad", make_gradient},
    {"HardSigmoidGrad", make_gradient},
    {"HardSwishGrad", make_gradient},
    {"LeakyReluGrad", make_gradient},
    {"PowScalarGrad", make_gradient},
    {"ReciprocalGrad", make_gradient},
    {"ReluGrad", make_gradient},
    {"SigmoidGrad", make_gradient},
    {"SiluGrad", make_gradient},
    {"SoftplusGrad", make_gradient},
    {"SqrtGrad", make_gradient},
    {"TanhGrad", make_gradient},
    {"Add", make_arithmetic},
    {"Div", make_arithmetic},
    {"Max", make_arithmetic},
    {"Min", make_arithmetic},
    {"Mod", make_arithmetic},
    {"Mul", make_arithmetic},
    {"Pow", make_arithmetic},
    {"Sub", make_arithmetic},
    {"Equal", make_comparison},
    {"Greater", make_comparison},
    {"GreaterOrEqual", make_comparison},
    {"Less", make_comparison},
    {"LessOrEqual", make_comparison},
    {"Sum", make_sum},
    {"Where", make_where},
};

}  // namespace

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::elementwise
