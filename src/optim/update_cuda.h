// The step of an optimizer on a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "device/queue_cuda.h"
#include "optim/optimizer.h"

namespace pipetrain {

/// As update() in optim/update.h, put into a queue. False, and nothing is done, for LAMB and LARS,
/// which look at norms.
bool update_cuda(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
                 double gradient_scale, std::span<float> parameter, std::span<const float> gradient,
                 std::span<float> state0, std::span<float> state1, const CudaQueue& queue);

}  // namespace pipetrain
