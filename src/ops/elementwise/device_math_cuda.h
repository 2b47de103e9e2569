// exp, erf, … for the element-wise functions of GPU kernels, hand-written and generated ones alike
// (C++17: nvcc and NVRTC compile this file).
#pragma once

#include "ops/elementwise/elementwise_math.h"

namespace pipetrain::elementwise {

/// The device compiler's functions, except where those and an exact division take more time than
/// the memory accesses of a kernel over bfloat16.
struct DeviceMath : StandardMath {
  /// Without the division's branch for operands that 1 + e^-x never is.
  static PT_HOST_DEVICE float sigmoid(float x) {
    return quick_reciprocal(1.0f + StandardMath::exp(-x));
  }
  /// Φ(-t) = e^(-t^2 / 2) k P(k) with k = 1 / (1 + 0.33 t): one exponential for the function and
  /// its derivative. P is minimax over t in [0, 14.5] (relative error 6e-8 before rounding); the
  /// exponential is 0 beyond.
  static PT_HOST_DEVICE float normal_below(float x, float& bell) {
    const float k = quick_reciprocal(std::fma(0.33f, std::fabs(x), 1.0f));
    float p = -0.02044234424829483f;
    p = std::fma(p, k, 0.12134810537099838f);
    p = std::fma(p, k, -0.2637094259262085f);
    p = std::fma(p, k, 0.22078321874141693f);
    p = std::fma(p, k, -0.05396873876452446f);
    p = std::fma(p, k, 0.12077654153108597f);
    p = std::fma(p, k, 0.11131945252418518f);
    p = std::fma(p, k, 0.1322692334651947f);
    p = std::fma(p, k, 0.1316239982843399f);
    bell = StandardMath::exp(-0.5f * x * x);
    const float beyond = p * k * bell;
    return x > 0.0f ? 1.0f - beyond : beyond;
  }
};

}  // namespace pipetrain::elementwise
