// The learning rate of a run at each of its steps: over the steps of the run, or over its time.
#pragma once

#include <cstdint>

#include "optim/learning_rate.h"
#include "train/session.h"

namespace pipetrain {

class RunRate {
 public:
  /// `max_seconds`: of the run, which a rate that goes by time spans; 0: any. `seconds_before`: of
  /// training before a resume. Error (kUsage) for settings that do not suit.
  RunRate(const Session& session, double max_seconds, double seconds_before);

  /// Training begins now.
  void start();
  /// Of training, before a resume too.
  double seconds() const;
  /// Of training since start().
  double seconds_since_start() const;
  /// The rate of the update that follows `step` updates.
  double at(std::int64_t step) const;

 private:
  void set_by_time(bool asynchronous);

  const OptimizationConfig& settings_;
  LearningRateSettings curve_;
  std::int64_t total_steps_;
  double max_seconds_;
  double seconds_before_;
  double start_ = 0;
};

}  // namespace pipetrain
