// What is fused into a normalization, as the kernels for CPUs compute it: limits or an element-wise
// operator behind it.
#pragma once

#include "ops/elementwise/elementwise_loops_cpu.h"
#include "ops/norm/batch_norm.h"

namespace pipetrain {

/// The limits of the output as floats; without limits the functions do nothing.
struct Clip {
  float low, high, passes_from;
  bool any;

  explicit Clip(const BatchNormLimits& limits)
      : low(static_cast<float>(limits.low)),
        high(static_cast<float>(limits.high)),
        passes_from(static_cast<float>(limits.passes_from)),
        any(limits.any()) {}

  template <bool kClipped>
  float output(float y) const {
    if constexpr (!kClipped) return y;
    const float raised = y < low ? low : y;
    return raised > high ? high : raised;
  }
  template <bool kClipped>
  float gradient(float dy, float y) const {
    if constexpr (!kClipped) return dy;
    const float above = y < passes_from ? 0.0F : dy;
    return y > high ? 0.0F : above;
  }
};

/// The element-wise operator behind a normalization, computed in parts that stay in the L1 cache.
struct Activation {
  static constexpr std::int64_t kPart = 2048;  // elements
  UnaryLoop loop = nullptr;                    // null: there is none
  BinaryLoop gradient = nullptr;               // of dy and the operand
  ErasedFunction function, gradient_function;

  /// For float32 or bfloat16 values, as `dtype` says.
  Activation(const Attributes& attributes, DType dtype) {
    const std::string op = batch_norm_activation(attributes);
    if (op.empty()) return;
    const bool narrow = dtype == DType::kBFloat16;
    loop = narrow ? elementwise::find_bfloat16_unary_loop(op, attributes, function)
                  : elementwise::find_unary_loop(op, attributes, function);
    gradient = narrow ? elementwise::find_bfloat16_gradient_loop(op + "Grad", attributes,
                                                                 gradient_function)
                      : elementwise::find_gradient_loop(op + "Grad", attributes, gradient_function);
    PT_CHECK(loop && gradient, kInternal, "a normalization cannot be followed by {}", op);
  }
};

/// What the gradient passes through behind the normalization.
enum class Behind { kNothing, kLimits, kActivation };

}  // namespace pipetrain
