// What kernels reach, next to the machine's own rates.
#pragma once

#include <string>

#include "profile/estimate.h"

namespace pipetrain {

/// A table of the kernels with arithmetic that take more than a moment, equal ones in one row,
/// those that take longest first: how many, seconds of one, Gflop/s by the definition of the
/// operator, and their share of `peak`, the flops per second of a large matrix product. More than
/// 100 % is an algorithm that multiplies less. Empty when no node has arithmetic.
std::string kernel_rates_table(const Profile& profile, const TrainingGraph& training, double peak);

/// For a device that was measured: all kernels that take more than a moment, in such rows: what one
/// takes, moves (node_bytes()) and computes, and the share of the roofline: how long it would take
/// at the rates of `roof`, of how long it takes.
std::string roofline_table(const Profile& profile, const TrainingGraph& training,
                           const DeviceSpeed& roof);

}  // namespace pipetrain
