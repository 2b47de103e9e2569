// Kernels of a device, for tests whose tensors lie on the host.
#pragma once

#include <memory>

#include "device/device.h"
#include "ops/kernel.h"

namespace pipetrain::test {

/// The device's own kernel between copies of its operands; null when it has none. Outputs and
/// workspace start as 0xFF bytes.
std::unique_ptr<Kernel> make_kernel_on(Device& device, const KernelRequest& request);

/// The GPU that PIPETRAIN_TEST_DEVICE=cuda asks for; null when it asks for none.
Device* device_under_test();

}  // namespace pipetrain::test
