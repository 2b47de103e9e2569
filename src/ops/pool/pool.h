// Pooling: shared by its definitions and kernels.
//
//   x: (N, C, spatial…)     y: (N, C, outputs…)
#pragma once

#include <span>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/kernel/window.h"

namespace pipetrain {

/// The window of a pooling node over an input of this shape.
Window pool_window(const Attributes& attributes, const Shape& x);
/// The divisor of an average along one axis, for each window: the number of positions. Padding
/// counts when the node says count_include_pad, but never the `overhang` that rounding up has added
/// to the end padding.
std::vector<std::int64_t> averaged_positions(const Attributes& attributes, const Window& window,
                                             std::size_t axis);

std::span<const KernelEntry> pool_reference_kernels();
std::span<const KernelEntry> pool_cpu_kernels();

}  // namespace pipetrain
