// Records the measurements of some rounds of a run, for a trace file and for the explanation at the
// end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/view/trace.h"
#include "pipeline/view/trace_diff.h"
#include "train/trainer.h"

namespace pipetrain {

/// The first and the last step that --trace-steps names: "FIRST-LAST" or one number, counted from
/// 1. Error (kUsage) for anything else, and for an asynchronous schedule.
std::pair<std::int64_t, std::int64_t> traced_steps(const PlannedNetwork& network,
                                                   const std::string& steps);

class StepRecorder {
 public:
  /// `run`: its name. `path`: a trace file to write, or empty. `steps`: as for traced_steps();
  /// empty: the first steps that are warm, after the `steps_before` ones of a run that goes on.
  StepRecorder(const PlannedNetwork& network, const std::string& run, const std::string& path,
               const std::string& steps, std::int64_t steps_before);

  /// Steps that were done before a resume.
  std::int64_t steps_before() const { return steps_before_; }
  /// Of a step, when the run began: the times of an estimated profile are replaced at its end.
  double predicted_seconds() const { return predicted_seconds_; }
  /// Whether that was from an estimate, which does not know this computer.
  bool is_estimate() const { return is_estimate_; }
  /// A round that has run; `step` counts from 1 and is its first.
  void round(std::int64_t step, const Program& program, const RoundResult& result);
  /// Completes the trace file. Where no step was recorded, an earlier file stays.
  void finish();
  /// Predicted beside measured with the largest causes of the difference; empty where no round of
  /// the predicted program was kept.
  std::string explanation() const;

 private:
  const PlannedNetwork& network_;
  const std::int64_t steps_before_;
  const double predicted_seconds_;
  const bool is_estimate_;
  std::int64_t first_ = 0, last_ = -1;
  std::unique_ptr<TraceWriter> writer_;
  double written_seconds_ = 0;
  std::vector<StepDifference> differences_;
};

}  // namespace pipetrain
