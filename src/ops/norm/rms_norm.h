// Normalisation by the root of the mean square (Zhang and Sennrich 2019).
//
//   RmsNorm{axis, epsilon}(x[, scale]) -> y, inverse_rms
//   x, y: (rows…, N…), normalised over the axes from `axis` on     scale: (N…)
//   inverse_rms: (rows…)     y = x inverse_rms scale
#pragma once

#include <span>

#include "ops/norm/layer_norm.h"

namespace pipetrain {

std::span<const KernelEntry> rms_norm_reference_kernels();
std::span<const KernelEntry> rms_norm_cpu_kernels();

}  // namespace pipetrain
