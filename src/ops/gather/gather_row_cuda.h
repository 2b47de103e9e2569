// The row that an index names, for .cu files.
#pragma once

#include <cstdint>

#include "ops/gather/gather_launch_cuda.h"

namespace pipetrain::gather {

/// Negative indices count from the end; indices out of range are clamped.
__device__ __forceinline__ std::int64_t row_at(const GatherShape& shape, const void* indices,
                                               std::int64_t i) {
  std::int64_t index = shape.wide ? static_cast<const std::int64_t*>(indices)[i]
                                  : static_cast<const std::int32_t*>(indices)[i];
  if (index < 0) index += shape.extent;
  return index < 0 ? 0 : index >= shape.extent ? shape.extent - 1 : index;
}

}  // namespace pipetrain::gather
