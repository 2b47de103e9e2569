// Which kernels ran on devices, for scripts/gpu-check: a line each in the file that
// PIPETRAIN_KERNEL_LOG names. Nothing is written, and nothing costs, without it.
#pragma once

#include <memory>
#include <string_view>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Adds a line: "BY OPERATOR TYPE", "graph launched", or "device" and what it is.
void log_kernel(std::string_view line);

/// The same kernel, which adds "BY OPERATOR TYPE" when it has run for the first time: by whom the
/// operator is computed ("own", "library", "host") and the type of its first operand.
std::unique_ptr<Kernel> logged(std::unique_ptr<Kernel> kernel, const KernelRequest& request,
                               std::string_view by);

}  // namespace pipetrain
