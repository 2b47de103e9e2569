// A log of the kernels that ran on devices, for scripts/gpu-check: one line each in the file that
// PIPETRAIN_KERNEL_LOG names. Without it nothing is logged, at no cost.
#pragma once

#include <memory>
#include <string_view>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Adds a line: "BY OPERATOR TYPE", "graph launched", or "device" and its description.
void log_kernel(std::string_view line);

/// Wraps a kernel so that its first run logs "BY OPERATOR TYPE": BY is "own" (hand-written),
/// "library" or "host", TYPE that of the first operand.
std::unique_ptr<Kernel> logged(std::unique_ptr<Kernel> kernel, const KernelRequest& request,
                               std::string_view by);

}  // namespace pipetrain
