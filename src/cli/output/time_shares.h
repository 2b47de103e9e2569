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

/// Adds up the measurements of rounds. The first round is counted separately: it includes warm-up.
class TimeAccount {
 public:
  /// After a round has run. Takes the kernels' times out of the run's runtime; the profile of a
  /// network with one stage that was only estimated becomes that of its first round.
  void round(PipelineRun& run, const Program& program, const RoundResult& result);
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
  std::vector<std::vector<KernelKind>> kinds_;  // [variant][node]
  std::vector<std::vector<bool>> in_update_;    // kernels that an update runs
  int rounds_ = 0;
};

}  // namespace pipetrain
