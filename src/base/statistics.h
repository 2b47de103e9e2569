// Order statistics of measurements.
#pragma once

#include <vector>

namespace pipetrain {

/// The middle value, or the mean of the two middle ones; NaN of nothing.
double median(std::vector<double> values);
/// The value below which `percent` of the values lie, interpolated linearly between neighbours; NaN
/// of nothing. percentile(v, 50) == median(v).
double percentile(std::vector<double> values, double percent);

}  // namespace pipetrain
