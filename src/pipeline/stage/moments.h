// Mean and variance of a BatchNorm's channels, merged exactly over several micro-batches.
#pragma once

#include <span>
#include <vector>

namespace pipetrain {

/// Parallel variance (Chan, Golub, LeVeque 1983) in double, in the order of the calls.
class Moments {
 public:
  /// Sets the number of channels and resets. `of_weights`: the moments are those of weights, which
  /// all micro-batches share, so that only the first merge counts.
  void reset(std::size_t channels, bool of_weights = false);
  /// Adds a micro-batch: per channel its mean and its biased variance over `count` values.
  void merge(std::span<const float> mean, std::span<const float> variance, double count);
  /// Merges another's moments.
  void merge(const Moments& other);
  /// Serializes the merged moments for another process, and back.
  std::vector<double> numbers() const;
  static Moments of(std::span<const double> numbers, bool of_weights = false);
  /// Merges parts as a tree of sums (transport/sum_tree.h); leaves the result in the first.
  static void join(std::span<Moments* const> parts);
  /// running = momentum * running + (1 - momentum) * merged, with the unbiased variance as in
  /// PyTorch; then resets. No-op when nothing was merged.
  void apply(double momentum, std::span<float> running_mean, std::span<float> running_variance);

 private:
  double count_ = 0;
  bool of_weights_ = false;
  std::vector<double> mean_, squares_;
};

}  // namespace pipetrain
