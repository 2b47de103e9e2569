// Depthwise convolutions that hand-written GPU kernels compute.
#pragma once

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Whether a hand-written kernel computes a Conv, faster than cuDNN: depthwise, channels last, with
/// a window of 3 x 3, 5 x 5 or 7 x 7.
bool has_depthwise_kernel(const KernelRequest& request);

}  // namespace pipetrain
