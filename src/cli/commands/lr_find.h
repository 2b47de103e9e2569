// train --lr find: a short run in which the learning rate grows until the loss does.
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"

namespace pipetrain {

struct RangePoint {
  double rate = 0, loss = 0;
};

/// The rate at which the smoothed loss falls fastest on the way to its minimum; 0 where it does not
/// fall.
double suggested_rate(const std::vector<RangePoint>& points);
/// The smoothed loss over the rate, on a logarithmic axis, in so many columns.
std::string range_plot(const std::vector<RangePoint>& points, std::size_t width);

/// Runs the range test (Smith 2017) and prints the rate; writes its curve where --output names an
/// SVG file. Nothing is trained.
int find_learning_rate(Options& options);

}  // namespace pipetrain
