// A schedule as the planner sees it: what it makes a stage hold, how often the weights change.
#pragma once

#include <string>
#include <vector>

#include "partition/plan.h"

namespace pipetrain {

/// Read once from the schedule's name, since the planner asks millions of times. A stage with r
/// replicas behaves as r devices in a row of the plain schedule: each replica takes every r-th
/// micro-batch and holds ceil(devices from here on / r) of them (1F1B round-robin of PipeDream).
class ScheduleRule {
 public:
  /// `devices` is the length of the pipeline, which the zero-bubble schedules depend on. Error
  /// (kUsage) for a schedule that runs no chain of stages.
  ScheduleRule(const std::string& name, int micro_batches, int devices);
  /// What each stage of a pipeline without replicas holds, given one by one.
  explicit ScheduleRule(std::vector<ScheduleLoad> loads);

  /// Never waits for all micro-batches: weights change while others are on their way.
  bool asynchronous() const { return kind_ == Kind::kPipedream || kind_ == Kind::kPipedream2bw; }
  /// Every round over the replicas ends with an update, not every mini-batch.
  bool updates_each_round() const { return kind_ == Kind::kPipedream; }

  /// `after`: the devices of all later stages. `whole`: there is no other stage.
  ScheduleLoad load(int replicas, int after, bool whole) const;
  /// The fewest replicas of which each holds at most `in_flight` micro-batches; 0 when no number of
  /// them does.
  int fewest_replicas(int in_flight, int after) const;

 private:
  enum class Kind : unsigned char {
    kGpipe,
    k1f1b,
    kAuto,
    kPipedream,
    kPipedream2bw,
    kZeroBubble1,
    kZeroBubble2,
    kGiven
  };

  Kind kind_;
  int micro_batches_ = 1;
  int devices_ = 1;
  std::vector<ScheduleLoad> loads_;  // [stages], of kGiven
};

}  // namespace pipetrain
