// Kernels of GPUs, for tests whose tensors lie on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "ops/kernel/kernel.h"

namespace pipetrain::test {

/// The GPU that PIPETRAIN_TEST_DEVICE=cuda asks for; null when it asks for none.
Device* device_under_test();

/// The kernel of the GPU under test, between copies of its operands; without one, what a GPU would
/// get under the emulator. Null when there is none. On a GPU operands keep their places in memory
/// among each other, and what is written beside results and workspace is a failure. All kernels
/// use one stream.
std::unique_ptr<Kernel> make_gpu_kernel(const KernelRequest& request);

/// Device::update() and Device::sums_of_squares() of the GPU under test, or under the emulator.
void update_on_gpu(std::int64_t step, double gradient_scale, double average_decay,
                   std::span<const DeviceUpdate> parameters);
std::vector<double> sums_of_squares_on_gpu(std::span<const std::span<const float>> values);

}  // namespace pipetrain::test
