// The axis of a cumulative sum or product (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace pipetrain {

/// A tensor as (outer, size, inner) around the axis, and the direction.
struct CumulativeAxis {
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;
  bool exclusive = false;
  bool reverse = false;

  /// The offset of step `step` of line (o, i).
  PT_HOST_DEVICE std::int64_t at(std::int64_t o, std::int64_t step, std::int64_t i) const {
    return (o * size + (reverse ? size - 1 - step : step)) * inner + i;
  }
};

}  // namespace pipetrain
