// The element-wise functions that kernels are made of, as lists: a function object travels from the
// host to nvcc's side as its place in the list and its parameters (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/queue_cuda.h"
#include "ops/elementwise_math.h"

namespace pipetrain::elementwise {

template <class... F>
struct Functions {};

template <template <class, class> class... F>
using FloatFunctions = Functions<F<float, StandardMath>...>;

using UnaryFunctions =
    FloatFunctions<Relu, Tanh, Sigmoid, Erf, Sqrt, Exp, Log, Neg, Reciprocal, Abs, Floor, Ceil,
                   Round, Sign, Gelu, GeluTanh, LeakyRelu, Elu, Softplus, Clip, HardSigmoid,
                   HardSwish, Silu, Square, Cube, PowScalar>;
using GradientFunctions =
    FloatFunctions<ReluGrad, TanhGrad, SigmoidGrad, SqrtGrad, ReciprocalGrad, ErfGrad, GeluGrad,
                   GeluTanhGrad, LeakyReluGrad, EluGrad, SoftplusGrad, ClipGrad, HardSigmoidGrad,
                   HardSwishGrad, SiluGrad, SquareGrad, CubeGrad, PowScalarGrad>;
using ArithmeticFunctions = Functions<Add<float>, Sub<float>, Mul<float>, Div<float>, Pow<float>,
                                      Max<float>, Min<float>, Mod<float>>;
using ComparisonFunctions =
    Functions<Equal<float>, Less<float>, Greater<float>, LessOrEqual<float>, GreaterOrEqual<float>>;

/// A function object, wherever it was made.
struct Coded {
  int place = -1;  // in its list; -1: in none
  float parameters[2] = {};
};

/// Empty function objects carry nothing.
template <class F>
constexpr std::size_t kParameterBytes = std::is_empty_v<F> ? 0 : sizeof(F);

template <class F, class... List>
Coded encode(const F& function, Functions<List...>) {
  static_assert(kParameterBytes<F> <= sizeof(Coded::parameters) && std::is_trivially_copyable_v<F>);
  Coded coded;
  int place = 0;
  ((std::is_same_v<F, List> ? (coded.place = place, true) : (++place, false)) || ...);
  std::memcpy(coded.parameters, &function, kParameterBytes<F>);
  return coded;
}

template <class F>
F decode(const Coded& coded) {
  F function{};
  std::memcpy(&function, coded.parameters, kParameterBytes<F>);
  return function;
}

/// Calls visit(f) with the function object that `coded` stands for.
template <class... List, class Visit>
void visit_coded(const Coded& coded, Functions<List...>, const Visit& visit) {
  int place = 0;
  ((coded.place == place++ ? (visit(decode<List>(coded)), true) : false) || ...);
}

/// How operands lie over the output: as BroadcastPlan, with room for what is left after merging.
constexpr int kMostDimensions = 6;
struct Strided {
  int dimensions = 0;
  std::int64_t sizes[kMostDimensions] = {};
  std::int64_t strides[3][kMostDimensions] = {};
};

void launch_unary(const Coded& function, const float* x, float* y, std::int64_t count,
                  const CudaQueue& queue);
void launch_gradient(const Coded& function, const float* dy, const float* x, float* dx,
                     std::int64_t count, const CudaQueue& queue);
void launch_arithmetic(const Coded& function, const Strided& plan, const float* a, const float* b,
                       float* y, std::int64_t count, const CudaQueue& queue);
void launch_comparison(const Coded& function, const Strided& plan, const float* a, const float* b,
                       std::uint8_t* y, std::int64_t count, const CudaQueue& queue);
/// y = condition ? a : b, elements of `size` bytes (1, 4 or 8).
void launch_where(const Strided& plan, const std::uint8_t* condition, const void* a, const void* b,
                  void* y, int size, std::int64_t count, const CudaQueue& queue);

enum class Convert {
  kBoolToFloat,
  kFloatToBool,
  kInt64ToBool,
  kInt64ToFloat,
  kInt32ToFloat,
  kFloatToInt64,
  kInt32ToInt64,
  kBoolToInt64,
  kNot,
};
void launch_convert(Convert convert, const void* x, void* y, std::int64_t count,
                    const CudaQueue& queue);

}  // namespace pipetrain::elementwise
