// The resize family, by file.
#pragma once

#include <span>

#include "ops/registry/registry.h"
#include "ops/resample/resize_map.h"

namespace pipetrain::resize {

std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

/// The work of one node: y[o, i, k] = Σ weight · x[o, index, k].
struct Resampling {
  std::int64_t outer, inputs, outputs, inner;
  ResizeMap map;
};
Resampling resampling_of(const KernelRequest& request);

}  // namespace pipetrain::resize
