// Reorder: the same logical tensor in another memory layout.
#pragma once

#include <span>

#include "ops/kernel.h"

namespace pipetrain {

/// Channels that lie next to each other in a layout: 1, 8 or 16.
std::int64_t channel_block(Layout layout);

std::span<const KernelEntry> reorder_reference_kernels();
std::span<const KernelEntry> reorder_cpu_kernels();

}  // namespace pipetrain
