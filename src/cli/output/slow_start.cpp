#include "cli/output/slow_start.h"

#include <fmt/format.h>

#include "base/statistics.h"

namespace pipetrain {

std::string SlowStart::add(double seconds) {
  constexpr double kEnoughSeconds = 2, kFactor = 2;
  constexpr std::size_t kEnoughSteps = 6;
  if (decided_) return {};
  seconds_.push_back(seconds);
  sum_ += seconds;
  if (sum_ < kEnoughSeconds || seconds_.size() < kEnoughSteps) return {};
  decided_ = true;
  const double factor = median(seconds_) / predicted_;
  if (factor < kFactor) return {};
  return fmt::format(
      "steps take {:.2g} times as long as predicted: other programs may use the cores{}", factor,
      threads_ > 1 ? fmt::format(", and {} threads wait for each other; try --threads 1", threads_)
                   : "");
}

}  // namespace pipetrain
