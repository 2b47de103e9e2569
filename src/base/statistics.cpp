#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace pipetrain {

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double position =
      std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double weight = position - static_cast<double>(below);
  return values[below] * (1 - weight) + values[above] * weight;
}

double median(std::vector<double> values) { return percentile(std::move(values), 50); }

}  // namespace pipetrain
