// The one header that the source of a generated kernel includes (ops/fused/fused_source.h).
#pragma once

#include <cstring>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/elementwise/device_math_cuda.h"
#include "ops/fused/fused_operands_cuda.h"

namespace pipetrain {

/// The value after rounding to its stored type.
__device__ __forceinline__ float restored(float value, Stored stored) {
  return widened(narrowed(value, stored), stored);
}

/// Floats that cannot be written as a literal.
__device__ __forceinline__ float number(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace pipetrain
