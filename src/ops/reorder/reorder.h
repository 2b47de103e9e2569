// Reorder: the same logical tensor in another memory layout.
#pragma once

#include <span>

#include "ops/kernel/kernel.h"

namespace pipetrain {

std::span<const KernelEntry> reorder_reference_kernels();
std::span<const KernelEntry> reorder_cpu_kernels();

}  // namespace pipetrain
