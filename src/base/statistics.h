// Order statistics of measurements.
#pragma once

#include <cstddef>
#include <vector>

namespace pipetrain {

/// The middle value, or the mean of the two middle ones; NaN for an empty range.
double median(std::vector<double> values);
/// The value below which `percent` of the values lie, interpolated linearly between neighbours; NaN
/// for an empty range. percentile(v, 50) == median(v).
double percentile(std::vector<double> values, double percent);

/// One value per step of a run of any length, in bounded memory: all of the first 8192, then every
/// second of all, every fourth, and so on.
class ThinnedValues {
 public:
  void add(double value);
  bool empty() const { return kept_.empty(); }
  double first() const { return kept_.front(); }
  /// Their median without the first steps of the run, which are slower.
  double warm_median() const;

 private:
  std::vector<double> kept_;
  std::size_t stride_ = 1;  // of all values, one in so many is kept
  std::size_t seen_ = 0;
};

}  // namespace pipetrain
