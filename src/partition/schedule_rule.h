// A schedule as the planner sees it: what a stage holds, and how often weights change.
#pragma once

#include <vector>

#include "partition/memory_rule.h"

namespace pipetrain {

/// A memory rule for one pipeline, made once since the planner asks millions of times.
class ScheduleRule {
 public:
  /// `devices` is the length of the pipeline, `micro_batches` those of a mini-batch.
  ScheduleRule(const MemoryRule& rule, int micro_batches, int devices);
  /// What each stage of a pipeline without replicas holds, given one by one.
  explicit ScheduleRule(std::vector<ScheduleLoad> loads);

  /// Asynchronous: weights change while micro-batches are in flight.
  bool asynchronous() const { return rule_.copies != WeightCopies::kOne; }
  /// Updates once per pass over the replicas instead of once per mini-batch.
  bool updates_each_round() const { return rule_.copies == WeightCopies::kPerMicroBatch; }

  /// `after`: the devices of all later stages.
  ScheduleLoad load(int replicas, int after) const;
  /// The fewest replicas of which each holds at most `in_flight` micro-batches; 0 when no number of
  /// them does.
  int fewest_replicas(int in_flight, int after) const;

 private:
  MemoryRule rule_;
  int micro_batches_ = 1;
  int devices_ = 1;
  std::vector<ScheduleLoad> loads_;  // [stages]; empty: by the rule
};

}  // namespace pipetrain
