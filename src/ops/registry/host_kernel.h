// How a device runs nodes without a device kernel: operands are copied to the host and back.
#pragma once

#include <memory>

#include "device/device.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Wraps the CPU's kernel in copies. Its run() synchronizes the stream. Correct for every operator
/// that the CPU has, but slow.
std::unique_ptr<Kernel> make_host_kernel(Stream& stream, const KernelRequest& request);

/// The device's kernel, or make_host_kernel().
std::unique_ptr<Kernel> make_kernel(Stream& stream, const KernelRequest& request);

}  // namespace pipetrain
