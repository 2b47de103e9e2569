// The row that a position names, for .cu files.
#pragma once

#include <cstdint>

#include "ops/gather/gather_launch_cuda.h"

namespace pipetrain::gather {

/// Negative indices count from the end; indices out of range are clamped.
__device__ __forceinline__ std::int64_t row_at(const RowRule& rule, const void* indices,
                                               std::int64_t position) {
  std::int64_t row = 0, rest = position;
  for (int d = rule.dimensions - 1; d >= 0; --d) {
    row += rest % rule.sizes[d] * rule.steps[d];
    rest /= rule.sizes[d];
  }
  for (int axis = 0; axis < rule.axes; ++axis) {
    const std::int64_t place = position * rule.axes + axis, extent = rule.extents[axis];
    std::int64_t index = rule.wide ? static_cast<const std::int64_t*>(indices)[place]
                                   : static_cast<const std::int32_t*>(indices)[place];
    if (index < 0) index += extent;
    row += (index < 0 ? 0 : index >= extent ? extent - 1 : index) * rule.strides[axis];
  }
  return row;
}

}  // namespace pipetrain::gather
