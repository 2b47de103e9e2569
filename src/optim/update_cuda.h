// The step of an optimizer on a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "device/queue_cuda.h"
#include "optim/optimizer.h"

namespace pipetrain {

/// Whether the GPU has the optimizer's step; those that look at norms are left to the host.
bool is_updated_on_gpu(const OptimizerSettings& settings);

/// Device::update() put into a queue: one kernel for up to kMostUpdated parameters. Does nothing to
/// parameters that is_updated_on_gpu() is false for.
void update_cuda(std::int64_t step, double gradient_scale, double average_decay,
                 std::span<const DeviceUpdate> parameters, const CudaQueue& queue);

}  // namespace pipetrain
