// Cumulative sums and products along an axis: shared by the definition and the kernels.
//
//   CumSum, CumProd{axis, exclusive, reverse}(x) -> y
//   CumProdGrad{axis, exclusive, reverse}(dy, x) -> dx
#pragma once

#include <cstdint>
#include <span>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// A tensor as (outer, size, inner) around the axis, and the direction.
struct CumulativeAxis {
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;
  bool exclusive = false;
  bool reverse = false;

  /// The offset of step `step` of line (o, i).
  std::int64_t at(std::int64_t o, std::int64_t step, std::int64_t i) const {
    return (o * size + (reverse ? size - 1 - step : step)) * inner + i;
  }
};

CumulativeAxis cumulative_axis(const KernelRequest& request);

std::span<const KernelEntry> cumulative_reference_kernels();
std::span<const KernelEntry> cumulative_cpu_kernels();

}  // namespace pipetrain
