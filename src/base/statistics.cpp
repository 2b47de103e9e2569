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

void ThinnedValues::add(double value) {
  constexpr std::size_t kMost = 8192;
  if (kept_.size() == kMost) {
    for (std::size_t i = 0; i < kMost / 2; ++i) kept_[i] = kept_[2 * i];
    kept_.resize(kMost / 2);
    stride_ *= 2;
  }
  if (seen_++ % stride_ == 0) kept_.push_back(value);
}

double ThinnedValues::warm_median() const {
  const std::size_t cold = seen_ > 8 ? 4 : 1;
  const std::size_t skipped = std::min(kept_.size() - 1, (cold + stride_ - 1) / stride_);
  return median({kept_.begin() + static_cast<std::ptrdiff_t>(skipped), kept_.end()});
}

}  // namespace pipetrain
