// The element-wise functions of GPU kernels, as lists: a function object is passed from host code
// to nvcc's code as its index in the list and its parameters (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"
#include "ops/elementwise/device_math_cuda.h"
#include "ops/elementwise/elementwise_list.h"

namespace pipetrain::elementwise {

template <class... F>
struct Functions {};

/// A list in which every row begins with a comma.
template <class None, class... F>
using Listed = Functions<F...>;

/// A function of the C library as a function object, OPOfLibrary. Its slow paths use local memory.
struct OfLibrary {};
#define PT_LIBRARY_FUNCTION(Function, of_library, ...)                       \
  struct Function##OfLibrary : OfLibrary {                                   \
    PT_HOST_DEVICE float operator()(float x) const { return of_library(x); } \
  };
PT_UNARY_OF_LIBRARY(PT_LIBRARY_FUNCTION)
#undef PT_LIBRARY_FUNCTION

#define PT_FUNCTION(Function, ...) , Function<float, DeviceMath>
#define PT_OF_LIBRARY(Function, ...) , Function##OfLibrary
#define PT_GRADIENT(Function, ...) , Function##Grad<float, DeviceMath>
#define PT_BINARY(Function, ...) , Function<float>
#define PT_COMPARISON(Function) , Function<float>
using UnaryFunctions = Listed<void PT_UNARY_WITH_GRADIENT(PT_FUNCTION) PT_UNARY_VARIANTS(
    PT_FUNCTION) PT_UNARY(PT_FUNCTION) PT_UNARY_OF_LIBRARY(PT_OF_LIBRARY)>;
using GradientFunctions =
    Listed<void PT_UNARY_WITH_GRADIENT(PT_GRADIENT) PT_UNARY_VARIANTS(PT_GRADIENT)>;
using ArithmeticFunctions = Listed<void PT_ARITHMETIC(PT_BINARY)>;
using ComparisonFunctions = Listed<void PT_COMPARISONS(PT_COMPARISON)>;
#undef PT_FUNCTION
#undef PT_OF_LIBRARY
#undef PT_GRADIENT
#undef PT_BINARY
#undef PT_COMPARISON

/// Functions of one integer, for both types.
#define PT_OF_floats(Function)
#define PT_OF_numbers(Function) \
  , Function<std::int32_t, DeviceMath>, Function<std::int64_t, DeviceMath>
#define PT_FUNCTION(Function, types, ...) PT_OF_##types(Function)
using IntegralUnaryFunctions = Listed<void PT_UNARY(PT_FUNCTION)>;
#undef PT_OF_floats
#undef PT_OF_numbers
#undef PT_FUNCTION

/// Functions of two integers or two bools (bytes), each for all types of its operands. The costly
/// one, Pow, is not among them: a GPU's pow() need not be exact.
#define PT_INTEGERS(Function) , Function<std::int32_t>, Function<std::int64_t>
#define PT_INTEGERS_IF_cheap(Function) PT_INTEGERS(Function)
#define PT_INTEGERS_IF_costly(Function)
#define PT_BINARY(Function, parameters, gradient, cost, ...) PT_INTEGERS_IF_##cost(Function)
#define PT_COMPARISON(Function) PT_INTEGERS(Function), Function<std::uint8_t>
#define PT_LOGICAL(Function) , Function
using IntegralFunctions = Listed<void PT_ARITHMETIC(PT_BINARY) PT_BITWISE(PT_INTEGERS)
                                     PT_COMPARISONS(PT_COMPARISON) PT_LOGIC(PT_LOGICAL)>;
#undef PT_INTEGERS
#undef PT_INTEGERS_IF_cheap
#undef PT_INTEGERS_IF_costly
#undef PT_BINARY
#undef PT_COMPARISON
#undef PT_LOGICAL

/// A function object in a form that both compilers understand.
struct Coded {
  int place = -1;  // index in its list; -1: in none
  float parameters[2] = {};
};

/// Empty function objects have no parameters.
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

/// Broadcast strides of the operands: a BroadcastPlan of fixed capacity.
constexpr int kMostDimensions = 6;
struct Strided {
  int dimensions = 0;
  std::int64_t sizes[kMostDimensions] = {};
  std::int64_t strides[3][kMostDimensions] = {};
};

void launch_unary(const Coded& function, const ConstFloatView& x, const FloatView& y,
                  std::int64_t count, const CudaQueue& queue);
void launch_gradient(const Coded& function, const ConstFloatView& dy, const ConstFloatView& x,
                     const FloatView& dx, std::int64_t count, const CudaQueue& queue);
void launch_arithmetic(const Coded& function, const Strided& plan, const ConstFloatView& a,
                       const ConstFloatView& b, const FloatView& y, std::int64_t count,
                       const CudaQueue& queue);
void launch_comparison(const Coded& function, const Strided& plan, const ConstFloatView& a,
                       const ConstFloatView& b, std::uint8_t* y, std::int64_t count,
                       const CudaQueue& queue);
/// Of IntegralUnaryFunctions.
void launch_integral(const Coded& function, const void* x, void* y, std::int64_t count,
                     const CudaQueue& queue);
/// Of IntegralFunctions: a and b hold its operands, y its results (a bool is a byte).
void launch_integral(const Coded& function, const Strided& plan, const void* a, const void* b,
                     void* y, std::int64_t count, const CudaQueue& queue);
/// y = condition ? a : b, elements of `size` bytes (1, 2, 4 or 8).
void launch_where(const Strided& plan, const std::uint8_t* condition, const void* a, const void* b,
                  void* y, int size, std::int64_t count, const CudaQueue& queue);
/// The same of floats that are stored in different types.
void launch_where(const Strided& plan, const std::uint8_t* condition, const ConstFloatView& a,
                  const ConstFloatView& b, const FloatView& y, std::int64_t count,
                  const CudaQueue& queue);
/// The sum of several tensors of one size, rounded once.
constexpr int kMostSummands = 64;
struct Summands {
  ConstFloatView x[kMostSummands];
  int count = 0;
};
void launch_sum(const Summands& summands, const FloatView& y, std::int64_t count,
                const CudaQueue& queue);

/// Between floats of any stored types.
void launch_restore(const ConstFloatView& x, const FloatView& y, std::int64_t count,
                    const CudaQueue& queue);
/// Element types of kernels that compute with integers and bools. Casts from floats saturate, and
/// NaN becomes 0 or the smallest integer.
enum class Integral { kBool, kInt32, kInt64 };
void launch_cast(Integral from, const void* x, Integral to, void* y, std::int64_t count,
                 const CudaQueue& queue);
void launch_cast(const ConstFloatView& x, Integral to, void* y, std::int64_t count,
                 const CudaQueue& queue);
void launch_cast(Integral from, const void* x, const FloatView& y, std::int64_t count,
                 const CudaQueue& queue);
void launch_not(const std::uint8_t* x, std::uint8_t* y, std::int64_t count, const CudaQueue& queue);
void launch_is_nan(const ConstFloatView& x, std::uint8_t* y, std::int64_t count,
                   const CudaQueue& queue);

}  // namespace pipetrain::elementwise
