// The formulas of the element-wise operators and their gradients, written once as function objects
// for the reference, the CPU and CUDA (C++17: nvcc compiles this file).
//
// T is the element type; Math offers exp, log, tanh, erf, … of T. StandardMath has those of the C
// library; the CPU kernels provide vectorisable ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/host_device.h"

namespace pipetrain::elementwise {

/// exp, log, … of the standard library, or of the device compiler.
struct StandardMath {
  template <class T>
  static PT_HOST_DEVICE T exp(T x) {
    return std::exp(x);
  }
  template <class T>
  static PT_HOST_DEVICE T log(T x) {
    return std::log(x);
  }
  template <class T>
  static PT_HOST_DEVICE T tanh(T x) {
    return std::tanh(x);
  }
  template <class T>
  static PT_HOST_DEVICE T erf(T x) {
    return std::erf(x);
  }
  template <class T>
  static PT_HOST_DEVICE T sigmoid(T x) {
    return T(1) / (T(1) + std::exp(-x));
  }
  template <class T>
  static PT_HOST_DEVICE T softplus(T x) {
    return (x > T(0) ? x : T(0)) + std::log1p(std::exp(-std::fabs(x)));
  }
  /// The normal distribution function of x; `bell` becomes e^(-x^2 / 2).
  template <class T>
  static PT_HOST_DEVICE T normal_below(T x, T& bell) {
    bell = std::exp(T(-0.5) * x * x);
    return T(0.5) * std::erfc(x * T(-0.70710678118654752440));
  }
};

// --- unary: y = f(x) ---

/// max(0, x); NaN stays NaN.
template <class T, class Math>
struct Relu {
  PT_HOST_DEVICE T operator()(T x) const { return x < T(0) ? T(0) : x; }
};
template <class T, class Math>
struct Tanh {
  PT_HOST_DEVICE T operator()(T x) const { return Math::tanh(x); }
};
template <class T, class Math>
struct Sigmoid {
  PT_HOST_DEVICE T operator()(T x) const { return Math::sigmoid(x); }
};
template <class T, class Math>
struct Erf {
  PT_HOST_DEVICE T operator()(T x) const { return Math::erf(x); }
};
template <class T, class Math>
struct Sqrt {
  PT_HOST_DEVICE T operator()(T x) const { return std::sqrt(x); }
};
template <class T, class Math>
struct Exp {
  PT_HOST_DEVICE T operator()(T x) const { return Math::exp(x); }
};
template <class T, class Math>
struct Log {
  PT_HOST_DEVICE T operator()(T x) const { return Math::log(x); }
};
template <class T, class Math>
struct Neg {
  PT_HOST_DEVICE T operator()(T x) const { return static_cast<T>(-x); }
};
template <class T, class Math>
struct Reciprocal {
  PT_HOST_DEVICE T operator()(T x) const { return T(1) / x; }
};
template <class T, class Math>
struct Abs {
  PT_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    return x < T(0) ? static_cast<T>(-x) : x;
  }
};
template <class T, class Math>
struct Floor {
  PT_HOST_DEVICE T operator()(T x) const { return std::floor(x); }
};
template <class T, class Math>
struct Ceil {
  PT_HOST_DEVICE T operator()(T x) const { return std::ceil(x); }
};
/// Halfway cases go to the even neighbour.
template <class T, class Math>
struct Round {
  PT_HOST_DEVICE T operator()(T x) const { return std::rint(x); }
};
template <class T, class Math>
struct Sign {
  PT_HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? T(1) : (x < T(0) ? static_cast<T>(-1) : x);
  }
};
/// x Φ(x), Φ being the normal distribution function.
template <class T, class Math>
struct Gelu {
  PT_HOST_DEVICE T operator()(T x) const {
    T bell;
    return x * Math::normal_below(x, bell);
  }
};
/// The tanh approximation of Gelu; (1 + tanh u) / 2 is sigmoid(2u).
template <class T, class Math>
struct GeluTanh {
  PT_HOST_DEVICE T operator()(T x) const {
    const T twice = T(2 * 0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    return x * Math::sigmoid(twice);
  }
};
template <class T, class Math>
struct LeakyRelu {
  T alpha;
  PT_HOST_DEVICE T operator()(T x) const { return x < T(0) ? alpha * x : x; }
};
template <class T, class Math>
struct Elu {
  T alpha;
  PT_HOST_DEVICE T operator()(T x) const {
    const T below = alpha * (Math::exp(x < T(0) ? x : T(0)) - T(1));
    return x < T(0) ? below : x;
  }
};
template <class T, class Math>
struct Softplus {
  PT_HOST_DEVICE T operator()(T x) const { return Math::softplus(x); }
};
template <class T, class Math>
struct Clip {
  T minimum;
  T maximum;
  PT_HOST_DEVICE T operator()(T x) const {
    const T low = x < minimum ? minimum : x;
    return low > maximum ? maximum : low;
  }
};
template <class T, class Math>
struct HardSigmoid {
  T alpha;
  T beta;
  PT_HOST_DEVICE T operator()(T x) const {
    const T line = alpha * x + beta;
    return line < T(0) ? T(0) : (line > T(1) ? T(1) : line);
  }
};
/// x · HardSigmoid(x) with alpha 1/6, beta 1/2.
template <class T, class Math>
struct HardSwish {
  PT_HOST_DEVICE T operator()(T x) const {
    return x * HardSigmoid<T, Math>{T(1) / T(6), T(0.5)}(x);
  }
};
/// x · sigmoid(x)
template <class T, class Math>
struct Silu {
  PT_HOST_DEVICE T operator()(T x) const { return x * Math::sigmoid(x); }
};
template <class T, class Math>
struct Square {
  PT_HOST_DEVICE T operator()(T x) const { return x * x; }
};
template <class T, class Math>
struct Cube {
  PT_HOST_DEVICE T operator()(T x) const { return x * x * x; }
};
template <class T, class Math>
struct PowScalar {
  T exponent;
  PT_HOST_DEVICE T operator()(T x) const { return std::pow(x, exponent); }
};

// --- gradients: dx = f(dy, y) where the result is enough, f(dy, x) elsewhere ---

/// From the result.
template <class T, class Math>
struct ReluGrad {
  PT_HOST_DEVICE T operator()(T dy, T y) const { return y > T(0) ? dy : T(0); }
};
/// From the result.
template <class T, class Math>
struct TanhGrad {
  PT_HOST_DEVICE T operator()(T dy, T y) const { return dy * (T(1) - y * y); }
};
/// From the result.
template <class T, class Math>
struct SigmoidGrad {
  PT_HOST_DEVICE T operator()(T dy, T y) const { return dy * y * (T(1) - y); }
};
/// From the result.
template <class T, class Math>
struct SqrtGrad {
  PT_HOST_DEVICE T operator()(T dy, T y) const { return dy * T(0.5) / y; }
};
/// From the result.
template <class T, class Math>
struct ReciprocalGrad {
  PT_HOST_DEVICE T operator()(T dy, T y) const { return -dy * y * y; }
};
template <class T, class Math>
struct ErfGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    return dy * T(1.12837916709551257390) * Math::exp(-x * x);
  }
};
template <class T, class Math>
struct GeluGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    T bell;
    const T below = Math::normal_below(x, bell);
    return dy * (below + T(0.39894228040143267794) * x * bell);
  }
};
template <class T, class Math>
struct GeluTanhGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    constexpr T kTwice = T(2 * 0.79788456080286535588);
    const T s = Math::sigmoid(kTwice * (x + T(0.044715) * x * x * x));
    const T slope = kTwice * (T(1) + T(3 * 0.044715) * x * x);
    return dy * (s + x * s * (T(1) - s) * slope);
  }
};
template <class T, class Math>
struct LeakyReluGrad {
  T alpha;
  /// At 0 as PyTorch has it.
  PT_HOST_DEVICE T operator()(T dy, T x) const { return x > T(0) ? dy : alpha * dy; }
};
template <class T, class Math>
struct EluGrad {
  T alpha;
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    const T below = dy * alpha * Math::exp(x > T(0) ? T(0) : x);
    return x > T(0) ? dy : below;
  }
};
template <class T, class Math>
struct SoftplusGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const { return dy * Math::sigmoid(x); }
};
template <class T, class Math>
struct ClipGrad {
  T minimum;
  T maximum;
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    const T above = x < minimum ? T(0) : dy;
    return x > maximum ? T(0) : above;
  }
};
template <class T, class Math>
struct HardSigmoidGrad {
  T alpha;
  T beta;
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    const T line = alpha * x + beta;
    const T above = line > T(0) ? alpha * dy : T(0);
    return line < T(1) ? above : T(0);
  }
};
template <class T, class Math>
struct HardSwishGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    const T middle = x < T(-3) ? T(0) : dy * (x / T(3) + T(0.5));
    return x < T(3) ? middle : dy;
  }
};
template <class T, class Math>
struct SiluGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    const T s = Math::sigmoid(x);
    return dy * s * (T(1) + x * (T(1) - s));
  }
};
template <class T, class Math>
struct SquareGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const { return dy * (x + x); }
};
template <class T, class Math>
struct CubeGrad {
  PT_HOST_DEVICE T operator()(T dy, T x) const { return dy * (T(3) * x * x); }
};
template <class T, class Math>
struct PowScalarGrad {
  T exponent;
  PT_HOST_DEVICE T operator()(T dy, T x) const {
    if (exponent == T(0)) return T(0);  // also at x = 0
    return dy * exponent * std::pow(x, exponent - T(1));
  }
};

// --- binary: c = f(a, b) ---

template <class T>
struct Add {
  PT_HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a + b); }
};
template <class T>
struct Sub {
  PT_HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a - b); }
};
template <class T>
struct Mul {
  PT_HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a * b); }
};
/// Integers: rounds towards zero; division by zero gives 0, because a kernel must not trap.
template <class T>
struct Div {
  PT_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == T(0)) return T(0);
      if constexpr (std::is_signed_v<T>) {
        using Unsigned = std::make_unsigned_t<T>;
        if (b == T(-1)) return static_cast<T>(Unsigned(0) - static_cast<Unsigned>(a));
      }
    }
    return static_cast<T>(a / b);
  }
};
template <class T>
struct Pow {
  PT_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::pow(a, b);
    return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
};
/// NaN wins, as in numpy.
template <class T>
struct Max {
  PT_HOST_DEVICE T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};
template <class T>
struct Min {
  PT_HOST_DEVICE T operator()(T a, T b) const { return a < b || a != a ? a : b; }
};
/// The remainder has the divisor's sign (Python), or the dividend's (C) when `truncate`.
template <class T>
struct Mod {
  bool truncate;
  PT_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      const T r = std::fmod(a, b);
      return !truncate && r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
    } else {
      if (b == T(0) || (std::is_signed_v<T> && b == static_cast<T>(-1))) return T(0);
      const T r = static_cast<T>(a % b);
      const bool other_sign = r != T(0) && (r < T(0)) != (b < T(0));
      return !truncate && other_sign ? static_cast<T>(r + b) : r;
    }
  }
};

// Bools are bytes.
struct And {
  PT_HOST_DEVICE bool operator()(unsigned char a, unsigned char b) const {
    return (a != 0) & (b != 0);
  }
};
struct Or {
  PT_HOST_DEVICE bool operator()(unsigned char a, unsigned char b) const { return (a | b) != 0; }
};
struct Xor {
  PT_HOST_DEVICE bool operator()(unsigned char a, unsigned char b) const {
    return (a != 0) != (b != 0);
  }
};

// Bits of integers. A shift by the width or more, or by a negative number, gives 0, or -1 for a
// negative number shifted to the right.
template <class T>
PT_HOST_DEVICE bool shifts_within(T by) {
  return static_cast<std::uint64_t>(by) < 8 * sizeof(T);
}
template <class T>
struct BitwiseAnd {
  PT_HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a & b); }
};
template <class T>
struct BitwiseOr {
  PT_HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a | b); }
};
template <class T>
struct BitwiseXor {
  PT_HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a ^ b); }
};
template <class T>
struct ShiftLeft {
  PT_HOST_DEVICE T operator()(T a, T b) const {
    return shifts_within(b) ? static_cast<T>(a << b) : T(0);
  }
};
template <class T>
struct ShiftRight {
  PT_HOST_DEVICE T operator()(T a, T b) const {
    constexpr int kSign = 8 * sizeof(T) - 1;
    return shifts_within(b) ? static_cast<T>(a >> b) : static_cast<T>((a >> kSign) >> 1);
  }
};

template <class T>
struct Equal {
  PT_HOST_DEVICE bool operator()(T a, T b) const { return a == b; }
};
template <class T>
struct Less {
  PT_HOST_DEVICE bool operator()(T a, T b) const { return a < b; }
};
template <class T>
struct Greater {
  PT_HOST_DEVICE bool operator()(T a, T b) const { return a > b; }
};
template <class T>
struct LessOrEqual {
  PT_HOST_DEVICE bool operator()(T a, T b) const { return a <= b; }
};
template <class T>
struct GreaterOrEqual {
  PT_HOST_DEVICE bool operator()(T a, T b) const { return a >= b; }
};

}  // namespace pipetrain::elementwise
