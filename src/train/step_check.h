// --verify-every: computes a step twice from the same state. Kernels have no random order, so any
// bit that differs is a fault of the machine, or a race.
#pragma once

#include <string>
#include <vector>

#include "pipeline/runtime/runtime.h"

namespace pipetrain {

class PipelineRun;

class StepCheck {
 public:
  /// The run is synchronous and of one process.
  explicit StepCheck(PipelineRun& run) : run_(run) {}

  /// Runs a round twice. Error (kDevice) that names the first stage whose bits differ; also when
  /// they have changed since the last check, where `follows` says that no step lies between.
  RoundResult run(const Program& program, MicroBatchSource& source, bool follows);
  /// SHA-256 of the parameters and running statistics after the last check, by their names: the
  /// same on every cut.
  std::string weights_digest() const;

 private:
  struct Attempt {
    RoundResult result;
    std::vector<double> losses;
    std::vector<StageContent> contents;
  };
  Attempt attempt(const Program& program, MicroBatchSource& source);
  void compare(const Attempt& first, const Attempt& second, std::uint64_t step) const;

  PipelineRun& run_;
  std::vector<StageContent> after_;  // the last check
};

}  // namespace pipetrain
