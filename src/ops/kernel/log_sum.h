// ln Σ e^x of a row, which a softmax or a cross-entropy keeps for its gradient (C++17: nvcc compiles
// this file).
#pragma once

#include "base/host_device.h"

namespace pipetrain {

/// Whether ln Σ e^x, the sum of the greatest x and ln Σ e^(x - greatest) in float, has lost digits
/// that a gradient needs: all of them where every x is -1e9 or the lowest float. Gradients then sum
/// the row again.
PT_HOST_DEVICE bool has_lost_digits(float log_sum) { return log_sum > 1000 || log_sum < -1000; }

}  // namespace pipetrain
