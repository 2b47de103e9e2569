// What may follow a normalization, as the reference kernels compute it.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/norm/batch_norm.h"

namespace pipetrain::behind {

template <class T>
T clip(T y, const BatchNormLimits& limits) {
  const T raised = y < static_cast<T>(limits.low) ? static_cast<T>(limits.low) : y;
  return raised > static_cast<T>(limits.high) ? static_cast<T>(limits.high) : raised;
}

/// The element-wise operator behind a normalization, and its gradient by dy and the operand.
template <class T>
struct Activation {
  std::function<T(T)> function;  // empty: there is none
  std::function<T(T, T)> gradient;

  explicit Activation(const Attributes& attributes) {
    using elementwise::StandardMath;
    const std::string op = batch_norm_activation(attributes);
    if (op.empty()) return;
    elementwise::visit_unary<T, StandardMath>(op, attributes, [&](auto f) { function = f; });
    elementwise::visit_gradient<T, StandardMath>(op + "Grad", attributes,
                                                 [&](auto f) { gradient = f; });
    PT_CHECK(function && gradient, kInternal, "a normalization cannot be followed by {}", op);
  }
};

/// What passes of dy, where the normalized value was y.
template <class T>
T gradient(const BatchNormLimits& limits, const Activation<T>& activation, T dy, T y) {
  if (activation.gradient) return activation.gradient(dy, y);
  const bool cut = y < static_cast<T>(limits.passes_from) || y > static_cast<T>(limits.high);
  return cut ? T{0} : dy;
}

}  // namespace pipetrain::behind
