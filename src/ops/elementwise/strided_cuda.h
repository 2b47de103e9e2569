// Where the operands of a broadcast stand, for .cu files.
#pragma once

#include <cstdint>

#include "ops/elementwise/elementwise_list_cuda.h"

namespace pipetrain::elementwise {

/// The offset of each operand for element i.
template <int kOperands>
__device__ __forceinline__ void locate(const Strided& plan, std::int64_t i,
                                       std::int64_t (&at)[kOperands]) {
  for (int k = 0; k < kOperands; ++k) at[k] = 0;
  for (int d = plan.dimensions - 1; d > 0; --d) {
    const std::int64_t index = i % plan.sizes[d];
    i /= plan.sizes[d];
    for (int k = 0; k < kOperands; ++k) at[k] += index * plan.strides[k][d];
  }
  for (int k = 0; k < kOperands; ++k) at[k] += i * plan.strides[k][0];
}

}  // namespace pipetrain::elementwise
