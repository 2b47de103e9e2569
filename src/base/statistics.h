// Order statistics of measurements.
#pragma once

#include <vector>

namespace pipetrain {

/// The middle value, or the mean of the two middle ones; NaN for an empty range.
double median(std::vector<double> values);
/// The value below which `percent` of the values lie, interpolated linearly between neighbours; NaN
/// for an empty range. percentile(v, 50) == median(v).
double percentile(std::vector<double> values, double percent);

}  // namespace pipetrain
