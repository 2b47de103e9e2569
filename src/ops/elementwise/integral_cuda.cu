// Element-wise functions of integers and bools, and casts from and to them, one element at a time:
// masks and positions, which are small beside what they are computed for. All have the bits of the
// host, except casts of floats that no integer holds.
#include <type_traits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/elementwise/strided_cuda.h"

namespace pipetrain::elementwise {
namespace {

/// The type of a function's operands: that of its template, or bytes.
template <class F>
struct OperandOf {
  using Type = std::uint8_t;
};
template <template <class> class F, class T>
struct OperandOf<F<T>> {
  using Type = T;
};
template <template <class, class> class F, class T>
struct OperandOf<F<T, DeviceMath>> {
  using Type = T;
};

template <class F, class X, class Y>
__global__ void map_integral(F f, Strided plan, const X* a, const X* b, Y* y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    std::int64_t at[2];
    locate(plan, i, at);
    y[i] = static_cast<Y>(f(a[at[0]], b[at[1]]));
  }
}

/// X: elements of one type, or ConstFloatView; Y likewise, or FloatView.
template <class F, class X, class Y>
__global__ void convert(F f, X x, Y y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) y[i] = f(x[i]);
}

struct IsZero {
  PT_HOST_DEVICE std::uint8_t operator()(std::uint8_t x) const { return x == 0; }
};
struct IsNaN {
  PT_HOST_DEVICE std::uint8_t operator()(float x) const { return x != x; }
};
struct IsTrue {
  template <class T>
  PT_HOST_DEVICE std::uint8_t operator()(T x) const {
    return x != T(0);
  }
};
template <class To>
struct CastTo {
  template <class T>
  PT_HOST_DEVICE To operator()(T x) const {
    return static_cast<To>(x);
  }
  /// A bool, which may be any byte.
  PT_HOST_DEVICE To operator()(std::uint8_t x) const { return static_cast<To>(x != 0); }
};

template <class F, class X, class Y>
void launch(F f, X x, Y y, std::int64_t count, const CudaQueue& queue) {
  PT_LAUNCH(convert, blocks_for(count, queue), kBlock, queue.stream, f, x, y, count);
}

template <class X>
void cast_to(Integral to, X x, void* y, std::int64_t count, const CudaQueue& queue) {
  if (to == Integral::kBool) launch(IsTrue(), x, static_cast<std::uint8_t*>(y), count, queue);
  if (to == Integral::kInt32)
    launch(CastTo<std::int32_t>(), x, static_cast<std::int32_t*>(y), count, queue);
  if (to == Integral::kInt64)
    launch(CastTo<std::int64_t>(), x, static_cast<std::int64_t*>(y), count, queue);
}

}  // namespace

void launch_integral(const Coded& function, const Strided& plan, const void* a, const void* b,
                     void* y, std::int64_t count, const CudaQueue& queue) {
  visit_coded(function, IntegralFunctions(), [&](auto f) {
    using X = typename OperandOf<decltype(f)>::Type;
    using Result = decltype(f(X(), X()));
    using Y = std::conditional_t<std::is_same_v<Result, bool>, std::uint8_t, Result>;
    PT_LAUNCH(map_integral, blocks_for(count, queue), kBlock, queue.stream, f, plan,
              static_cast<const X*>(a), static_cast<const X*>(b), static_cast<Y*>(y), count);
  });
}

void launch_integral(const Coded& function, const void* x, void* y, std::int64_t count,
                     const CudaQueue& queue) {
  visit_coded(function, IntegralUnaryFunctions(), [&](auto f) {
    using T = typename OperandOf<decltype(f)>::Type;
    launch(f, static_cast<const T*>(x), static_cast<T*>(y), count, queue);
  });
}

void launch_cast(Integral from, const void* x, Integral to, void* y, std::int64_t count,
                 const CudaQueue& queue) {
  if (from == Integral::kBool) cast_to(to, static_cast<const std::uint8_t*>(x), y, count, queue);
  if (from == Integral::kInt32) cast_to(to, static_cast<const std::int32_t*>(x), y, count, queue);
  if (from == Integral::kInt64) cast_to(to, static_cast<const std::int64_t*>(x), y, count, queue);
}

void launch_cast(const ConstFloatView& x, Integral to, void* y, std::int64_t count,
                 const CudaQueue& queue) {
  cast_to(to, x, y, count, queue);
}

void launch_cast(Integral from, const void* x, const FloatView& y, std::int64_t count,
                 const CudaQueue& queue) {
  if (from == Integral::kBool)
    launch(CastTo<float>(), static_cast<const std::uint8_t*>(x), y, count, queue);
  if (from == Integral::kInt32)
    launch(CastTo<float>(), static_cast<const std::int32_t*>(x), y, count, queue);
  if (from == Integral::kInt64)
    launch(CastTo<float>(), static_cast<const std::int64_t*>(x), y, count, queue);
}

void launch_not(const std::uint8_t* x, std::uint8_t* y, std::int64_t count,
                const CudaQueue& queue) {
  launch(IsZero(), x, y, count, queue);
}

void launch_is_nan(const ConstFloatView& x, std::uint8_t* y, std::int64_t count,
                   const CudaQueue& queue) {
  launch(IsNaN(), x, y, count, queue);
}

}  // namespace pipetrain::elementwise
