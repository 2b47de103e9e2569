// Where the time of the steps of a run went: kernels by kind, the optimizer, idle.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "graph/op_traits.h"
#include "train/pipeline_run.h"

namespace pipetrain {

/// Shares of the time of all devices; they sum up to 1.
struct TimeShares {
  std::array<double, kKernelKinds> kernels{};
  double optimizer = 0;
  double wait = 0;  // waiting for other stages and data, and overhead between instructions
};

/// The kernels' times in the quickest of the first rounds of a run. The very first one warms up
/// memory and caches; rounds that are shorter than it, or have a validation after them, are not
/// compared.
class QuickestRound {
 public:
  void add(KernelTimes times, double update_seconds);
  const KernelTimes& times() const { return times_; }
  double update_seconds() const { return update_seconds_; }

 private:
  int rounds_ = 0;
  KernelTimes times_;  // of no micro-batch before the first round
  double update_seconds_ = 0, seconds_ = 0;
};

/// Adds up the measurements of rounds. The first round is counted separately: it includes warm-up.
class TimeAccount {
 public:
  /// After a round has run. Takes the kernels' times out of the run's runtime.
  void round(PipelineRun& run, const Program& program, const RoundResult& result);
  /// After the last round: the profile of a network with one stage that was only estimated becomes
  /// that of a quick round.
  void replace_estimate(PlannedNetwork& network) const;
  /// Of all rounds except the first; of the first if there is no other.
  TimeShares shares() const;
  /// "matmul/conv 81.0 % · element-wise 9.1 % · …"; empty before the first round.
  std::string text() const;

 private:
  struct Sums {
    std::array<double, kKernelKinds> kernels{};
    double optimizer = 0;
    double total = 0;  // devices × seconds
  };
  Sums first_, later_;
  QuickestRound quickest_;
  std::vector<std::vector<KernelKind>> kinds_;  // [variant][node]
  std::vector<std::vector<bool>> in_update_;    // kernels that an update runs
  int rounds_ = 0;
};

}  // namespace pipetrain
