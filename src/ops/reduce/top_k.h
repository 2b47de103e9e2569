// TopK: shared by the definition and the kernels.
//
//   TopK{axis, k, largest}(x) -> values, indices (int64), both with k entries along the axis, best
//   first; of equal elements the first comes first. NaN counts as larger than any number.
#pragma once

#include <span>

#include "ops/kernel/kernel.h"

namespace pipetrain {

std::span<const KernelEntry> top_k_reference_kernels();
std::span<const KernelEntry> top_k_cpu_kernels();

}  // namespace pipetrain
