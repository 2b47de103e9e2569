// How a device runs the nodes that it has no kernel for: operands travel to the host and back.
#pragma once

#include <memory>

#include "device/device.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

/// The CPU's kernel behind copies. Its run() waits for the stream. Correct for every operator that
/// the CPU has, and as slow as it sounds.
std::unique_ptr<Kernel> make_host_kernel(Stream& stream, const KernelRequest& request);

/// The device's own kernel, or make_host_kernel().
std::unique_ptr<Kernel> make_kernel(Stream& stream, const KernelRequest& request);

}  // namespace pipetrain
