// Cumulative sums and products along an axis: shared by the definition and the kernels.
//
//   CumSum, CumProd{axis, exclusive, reverse}(x) -> y
//   CumProdGrad{axis, exclusive, reverse}(dy, x) -> dx
#pragma once

#include <span>

#include "ops/kernel/kernel.h"
#include "ops/reduce/cumulative_axis.h"

namespace pipetrain {

CumulativeAxis cumulative_axis(const KernelRequest& request);

std::span<const KernelEntry> cumulative_reference_kernels();
std::span<const KernelEntry> cumulative_cpu_kernels();

}  // namespace pipetrain
