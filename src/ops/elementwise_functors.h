// From the name and attributes of an element-wise operator to its function object. visit(f) is
// called for a known name; the result says whether there was one.
#pragma once

#include <cmath>
#include <limits>
#include <string_view>

#include "graph/attributes.h"
#include "ops/elementwise_math.h"

namespace pipetrain::elementwise {

/// Clip and ClipGrad: a limit that is absent is the type's own.
template <class T, class Math, template <class, class> class Function>
Function<T, Math> clip_from(const Attributes& attributes) {
  using Limits = std::numeric_limits<T>;
  const T lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  const T highest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  return {attributes.has("min") ? static_cast<T>(attributes.real("min")) : lowest,
          attributes.has("max") ? static_cast<T>(attributes.real("max")) : highest};
}

/// A function of the C library, called where inlining gains nothing.
template <class T>
struct LibraryFunction {
  T (*function)(T);
  T operator()(T x) const { return function(x); }
};

/// The function of that name; null when the C library has none.
template <class T>
T (*library_function(std::string_view op))
(T) {
  if (op == "Acos") return std::acos;
  if (op == "Acosh") return std::acosh;
  if (op == "Asin") return std::asin;
  if (op == "Asinh") return std::asinh;
  if (op == "Atan") return std::atan;
  if (op == "Atanh") return std::atanh;
  if (op == "Cos") return std::cos;
  if (op == "Cosh") return std::cosh;
  if (op == "Sin") return std::sin;
  if (op == "Sinh") return std::sinh;
  if (op == "Tan") return std::tan;
  return nullptr;
}

/// Operators of one float input.
template <class T, class Math, class Visit>
bool visit_unary(std::string_view op, const Attributes& attributes, Visit visit) {
  const auto real = [&](std::string_view name, double fallback) {
    return static_cast<T>(attributes.real(name, fallback));
  };
  if (op == "Relu") return visit(Relu<T, Math>{}), true;
  if (op == "Tanh") return visit(Tanh<T, Math>{}), true;
  if (op == "Sigmoid") return visit(Sigmoid<T, Math>{}), true;
  if (op == "Erf") return visit(Erf<T, Math>{}), true;
  if (op == "Sqrt") return visit(Sqrt<T, Math>{}), true;
  if (op == "Exp") return visit(Exp<T, Math>{}), true;
  if (op == "Log") return visit(Log<T, Math>{}), true;
  if (op == "Neg") return visit(Neg<T, Math>{}), true;
  if (op == "Reciprocal") return visit(Reciprocal<T, Math>{}), true;
  if (op == "Abs") return visit(Abs<T, Math>{}), true;
  if (op == "Floor") return visit(Floor<T, Math>{}), true;
  if (op == "Ceil") return visit(Ceil<T, Math>{}), true;
  if (op == "Round") return visit(Round<T, Math>{}), true;
  if (op == "Sign") return visit(Sign<T, Math>{}), true;
  if (op == "Gelu") {
    if (attributes.text("approximate", "none") == "tanh") return visit(GeluTanh<T, Math>{}), true;
    return visit(Gelu<T, Math>{}), true;
  }
  if (op == "LeakyRelu") return visit(LeakyRelu<T, Math>{real("alpha", 0.01)}), true;
  if (op == "Elu") return visit(Elu<T, Math>{real("alpha", 1)}), true;
  if (op == "Softplus") return visit(Softplus<T, Math>{}), true;
  if (op == "Clip") return visit(clip_from<T, Math, Clip>(attributes)), true;
  if (op == "HardSigmoid") {
    return visit(HardSigmoid<T, Math>{real("alpha", 0.2), real("beta", 0.5)}), true;
  }
  if (op == "HardSwish") return visit(HardSwish<T, Math>{}), true;
  if (op == "Silu") return visit(Silu<T, Math>{}), true;
  if (op == "PowScalar") {
    const T exponent = real("exponent", 1);
    if (exponent == T(2)) return visit(Square<T, Math>{}), true;
    if (exponent == T(3)) return visit(Cube<T, Math>{}), true;
    return visit(PowScalar<T, Math>{exponent}), true;
  }
  if (auto* function = library_function<T>(op)) return visit(LibraryFunction<T>{function}), true;
  return false;
}

/// Gradient operators: (dy, y) or (dy, x).
template <class T, class Math, class Visit>
bool visit_gradient(std::string_view op, const Attributes& attributes, Visit visit) {
  const auto real = [&](std::string_view name, double fallback) {
    return static_cast<T>(attributes.real(name, fallback));
  };
  if (op == "ReluGrad") return visit(ReluGrad<T, Math>{}), true;
  if (op == "TanhGrad") return visit(TanhGrad<T, Math>{}), true;
  if (op == "SigmoidGrad") return visit(SigmoidGrad<T, Math>{}), true;
  if (op == "SqrtGrad") return visit(SqrtGrad<T, Math>{}), true;
  if (op == "ReciprocalGrad") return visit(ReciprocalGrad<T, Math>{}), true;
  if (op == "ErfGrad") return visit(ErfGrad<T, Math>{}), true;
  if (op == "GeluGrad") {
    if (attributes.text("approximate", "none") == "tanh") {
      return visit(GeluTanhGrad<T, Math>{}), true;
    }
    return visit(GeluGrad<T, Math>{}), true;
  }
  if (op == "LeakyReluGrad") return visit(LeakyReluGrad<T, Math>{real("alpha", 0.01)}), true;
  if (op == "EluGrad") return visit(EluGrad<T, Math>{real("alpha", 1)}), true;
  if (op == "SoftplusGrad") return visit(SoftplusGrad<T, Math>{}), true;
  if (op == "ClipGrad") return visit(clip_from<T, Math, ClipGrad>(attributes)), true;
  if (op == "HardSigmoidGrad") {
    return visit(HardSigmoidGrad<T, Math>{real("alpha", 0.2), real("beta", 0.5)}), true;
  }
  if (op == "HardSwishGrad") return visit(HardSwishGrad<T, Math>{}), true;
  if (op == "SiluGrad") return visit(SiluGrad<T, Math>{}), true;
  if (op == "PowScalarGrad") {
    const T exponent = real("exponent", 1);
    if (exponent == T(2)) return visit(SquareGrad<T, Math>{}), true;
    if (exponent == T(3)) return visit(CubeGrad<T, Math>{}), true;
    return visit(PowScalarGrad<T, Math>{exponent}), true;
  }
  return false;
}

/// Binary operators whose result has the operands' type.
template <class T, class Visit>
bool visit_arithmetic(std::string_view op, const Attributes& attributes, Visit visit) {
  if (op == "Add") return visit(Add<T>{}), true;
  if (op == "Sub") return visit(Sub<T>{}), true;
  if (op == "Mul") return visit(Mul<T>{}), true;
  if (op == "Div") return visit(Div<T>{}), true;
  if (op == "Pow") return visit(Pow<T>{}), true;
  if (op == "Max") return visit(Max<T>{}), true;
  if (op == "Min") return visit(Min<T>{}), true;
  if (op == "Mod") return visit(Mod<T>{attributes.flag("fmod")}), true;
  return false;
}

/// Binary operators whose result is bool.
template <class T, class Visit>
bool visit_comparison(std::string_view op, Visit visit) {
  if (op == "Equal") return visit(Equal<T>{}), true;
  if (op == "Less") return visit(Less<T>{}), true;
  if (op == "Greater") return visit(Greater<T>{}), true;
  if (op == "LessOrEqual") return visit(LessOrEqual<T>{}), true;
  if (op == "GreaterOrEqual") return visit(GreaterOrEqual<T>{}), true;
  return false;
}

/// Operators on the bits of unsigned integers.
template <class T, class Visit>
bool visit_bitwise(std::string_view op, Visit visit) {
  if (op == "BitwiseAnd") return visit(BitwiseAnd<T>{}), true;
  if (op == "BitwiseOr") return visit(BitwiseOr<T>{}), true;
  if (op == "BitwiseXor") return visit(BitwiseXor<T>{}), true;
  if (op == "ShiftLeft") return visit(ShiftLeft<T>{}), true;
  if (op == "ShiftRight") return visit(ShiftRight<T>{}), true;
  return false;
}

}  // namespace pipetrain::elementwise
