// The files that make up the element-wise family.
#pragma once

#include <span>

#include "ops/registry.h"

namespace pipetrain::elementwise {

std::span<const ImportRule> imports();
std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

}  // namespace pipetrain::elementwise
