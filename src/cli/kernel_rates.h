// What the kernels with arithmetic reach, next to the machine's own rate.
#pragma once

#include <string>

#include "profile/profile.h"

namespace pipetrain {

/// A table of the kernels with arithmetic that take more than a moment, equal ones in one row,
/// those that take longest first: how many, seconds of one, Gflop/s by the definition of the
/// operator, and their share of `peak`, the flops per second of a large matrix product. More than
/// 100 % is an algorithm that multiplies less. Empty when no node has arithmetic.
std::string kernel_rates_table(const Profile& profile, const TrainingGraph& training, double peak);

}  // namespace pipetrain
