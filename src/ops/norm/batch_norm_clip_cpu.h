// The limits of a BatchNorm with an activation, as its kernels for CPUs need them.
#pragma once

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

}  // namespace pipetrain
