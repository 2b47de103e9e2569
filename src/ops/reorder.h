// Reorder: the same logical tensor in another memory layout.
#pragma once

#include <span>

#include "ops/kernel.h"

namespace pipetrain {

/// Channels that lie next to each other: 1, 8, 16 or all of them. A picture (N, C, H, W) lies in
/// memory as (N, C / block, H, W, block).
std::int64_t channel_block(const TensorType& type);

std::span<const KernelEntry> reorder_reference_kernels();
std::span<const KernelEntry> reorder_cpu_kernels();

}  // namespace pipetrain
