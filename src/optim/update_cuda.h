// Optimizer steps on a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "device/queue_cuda.h"
#include "optim/optimizer.h"

namespace pipetrain {

/// Whether the GPU supports the optimizer; those that use norms run on the host.
bool is_updated_on_gpu(const OptimizerSettings& settings);

/// Enqueues Device::update(): one kernel for up to kMostUpdated parameters. Skips parameters for
/// which is_updated_on_gpu() is false.
void update_cuda(std::int64_t step, double gradient_scale, double average_decay,
                 std::span<const DeviceUpdate> parameters, const CudaQueue& queue);

}  // namespace pipetrain
