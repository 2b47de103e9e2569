// What kernels reach, next to the machine's own rates.
#pragma once

#include <string>

#include "profile/estimate.h"

namespace pipetrain {

/// A table of the kernels with arithmetic and a notable time, equal ones in one row, the slowest
/// first: how many, seconds of one, Gflop/s by the definition of the operator, and their share of
/// `peak`, the flops per second of a large matrix product. More than 100 % is an algorithm that
/// multiplies less. Empty when no node has arithmetic.
std::string kernel_rates_table(const Profile& profile, const TrainingGraph& training, double peak);

/// For a measured device: all kernels with a notable time: time, bytes moved (node_bytes()), FLOPs,
/// and the fraction of the roofline: the ideal time at the rates of `roof` over the measured one.
std::string roofline_table(const Profile& profile, const TrainingGraph& training,
                           const DeviceSpeed& roof);

}  // namespace pipetrain
