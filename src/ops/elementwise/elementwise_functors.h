// From the name and attributes of an element-wise operator to its function object. visit(f) is
// called for a known name; the result says whether there was one.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "graph/attributes.h"
#include "ops/elementwise/elementwise_list.h"
#include "ops/elementwise/elementwise_math.h"

namespace pipetrain::elementwise {

/// A number as T; integers stop at the limits of their type.
template <class T>
T saturated(double x) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_integral_v<T>) {
    if (x >= std::ldexp(1.0, Limits::digits)) return Limits::max();
    if (x <= static_cast<double>(Limits::lowest())) return Limits::lowest();
  }
  return static_cast<T>(x);
}

/// Parameters of an operator from its attributes, as the rows of elementwise_list.h request them.
template <class T>
struct Parameters {
  const Attributes& attributes;

  T real(std::string_view name, double fallback) const {
    return static_cast<T>(attributes.real(name, fallback));
  }
  /// A missing limit defaults to that of the type.
  T lower(std::string_view name) const {
    using Limits = std::numeric_limits<T>;
    if (attributes.has(name)) return saturated<T>(attributes.real(name));
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  T upper(std::string_view name) const {
    using Limits = std::numeric_limits<T>;
    if (attributes.has(name)) return saturated<T>(attributes.real(name));
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  std::string text(std::string_view name, std::string fallback) const {
    return attributes.text(name, std::move(fallback));
  }
  bool flag(std::string_view name) const { return attributes.flag(name); }
};

/// A function of the C library, called where inlining gains nothing.
template <class T>
struct LibraryFunction {
  T (*function)(T);
  T operator()(T x) const { return function(x); }
};

/// The `types` column of a row.
enum class OperandTypes { floats, numbers };
template <class T>
constexpr bool takes(OperandTypes types) {
  return std::is_floating_point_v<T> || types == OperandTypes::numbers;
}

#define PT_LIST(...) __VA_ARGS__

/// Operators of one input.
template <class T, class Math, class Visit>
bool visit_unary(std::string_view op, const Attributes& attributes, Visit visit) {
  [[maybe_unused]] const Parameters<T> p{attributes};
#define PT_VISIT(Function, Operator, condition)                                  \
  if constexpr (std::is_floating_point_v<T>) {                                   \
    if (op == #Operator && (condition)) return visit(Function<T, Math>{}), true; \
  }
  PT_UNARY_VARIANTS(PT_VISIT)
#undef PT_VISIT
#define PT_VISIT(Function, parameters, types, ...)                                  \
  if constexpr (takes<T>(OperandTypes::types)) {                                    \
    if (op == #Function) return visit(Function<T, Math>{PT_LIST parameters}), true; \
  }
  PT_UNARY_WITH_GRADIENT(PT_VISIT)
#undef PT_VISIT
#define PT_VISIT(Function, types, ...)                            \
  if constexpr (takes<T>(OperandTypes::types)) {                  \
    if (op == #Function) return visit(Function<T, Math>{}), true; \
  }
  PT_UNARY(PT_VISIT)
#undef PT_VISIT
#define PT_VISIT(Operator, function, ...)                                  \
  if constexpr (std::is_floating_point_v<T>) {                             \
    if (op == #Operator) return visit(LibraryFunction<T>{function}), true; \
  }
  PT_UNARY_OF_LIBRARY(PT_VISIT)
#undef PT_VISIT
  return false;
}

/// Gradient operators: (dy, y) or (dy, x).
template <class T, class Math, class Visit>
bool visit_gradient(std::string_view op, const Attributes& attributes, Visit visit) {
  [[maybe_unused]] const Parameters<T> p{attributes};
#define PT_VISIT(Function, Operator, condition) \
  if (op == #Operator "Grad" && (condition)) return visit(Function##Grad<T, Math>{}), true;
  PT_UNARY_VARIANTS(PT_VISIT)
#undef PT_VISIT
#define PT_VISIT(Function, parameters, ...) \
  if (op == #Function "Grad") return visit(Function##Grad<T, Math>{PT_LIST parameters}), true;
  PT_UNARY_WITH_GRADIENT(PT_VISIT)
#undef PT_VISIT
  return false;
}

/// Binary operators whose result has the operands' type.
template <class T, class Visit>
bool visit_arithmetic(std::string_view op, const Attributes& attributes, Visit visit) {
  [[maybe_unused]] const Parameters<T> p{attributes};
#define PT_VISIT(Function, parameters, ...) \
  if (op == #Function) return visit(Function<T>{PT_LIST parameters}), true;
  PT_ARITHMETIC(PT_VISIT)
#undef PT_VISIT
  return false;
}

/// Binary operators whose result is bool.
template <class T, class Visit>
bool visit_comparison(std::string_view op, Visit visit) {
#define PT_VISIT(Function) \
  if (op == #Function) return visit(Function<T>{}), true;
  PT_COMPARISONS(PT_VISIT)
#undef PT_VISIT
  return false;
}

/// Operators on bools, which are bytes.
template <class Visit>
bool visit_logic(std::string_view op, Visit visit) {
#define PT_VISIT(Function) \
  if (op == #Function) return visit(Function{}), true;
  PT_LOGIC(PT_VISIT)
#undef PT_VISIT
  return false;
}

/// Operators on the bits of integers.
template <class T, class Visit>
bool visit_bitwise(std::string_view op, Visit visit) {
#define PT_VISIT(Function) \
  if (op == #Function) return visit(Function<T>{}), true;
  PT_BITWISE(PT_VISIT)
#undef PT_VISIT
  return false;
}

#undef PT_LIST

}  // namespace pipetrain::elementwise
