// The programs of a run: of a schedule by its name, or of a file.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "partition/plan.h"
#include "pipeline/program/program.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/simulate/simulate.h"
#include "train/config.h"

namespace pipetrain {

/// The schedule of a run, before anything is planned.
class RunSchedule {
 public:
  /// Reads the schedule's file, if it is one. Error (kUsage) for what cannot be trained with.
  explicit RunSchedule(const PipelineConfig& config);

  /// How many stages the model must be cut into.
  int stages() const;
  UpdateRule rule() const { return rule_; }
  /// Devices of the schedule: those of its file, or as many as requested.
  int devices() const { return from_file_ ? from_file_->devices : std::max(1, config_.devices); }
  /// The replica on the place-th device of a stage of `replicas`.
  int replica_at(int place, int replicas) const {
    return pipetrain::replica_at(place, replicas, config_.accumulators > 0);
  }
  /// Micro-batches that the schedule is written for; 0: any number.
  int fixed_units() const { return from_file_ ? from_file_->micro_batches : 0; }
  /// The stages that recompute because the schedule's file says so; empty: none, or the options say
  /// something else.
  std::vector<bool> recompute() const;
  /// Whether the warm-up depends on the times of stages and links.
  bool balances_warm_up() const;
  /// What each stage holds in a round of that many micro-batches, for the planner; with the warm-up
  /// of 1f1b where that depends on times.
  std::vector<ScheduleLoad> loads(int micro_batches) const;
  /// The stages that each device has, in a schedule without replicas.
  std::vector<std::vector<int>> stages_of_devices(int micro_batches) const;

 private:
  friend class ProgramMaker;

  /// A round of that many micro-batches, or more if the schedule is asynchronous. None recomputes.
  Program outline(int micro_batches) const;

  PipelineConfig config_;
  UpdateRule rule_ = UpdateRule::kSync;
  std::optional<Program> from_file_;
};

/// Makes the programs of a schedule for the stages of a plan.
class ProgramMaker {
 public:
  /// Takes over what the plan decided: recompute, replicas. `costs`: per stage and unit, for
  /// 1f1b-auto. `units_per_update` matters for pipedream-2bw. `most_micro_batches`: that a device
  /// of each stage can hold, also for 1f1b-auto; empty: any number.
  ProgramMaker(const RunSchedule& schedule, const Plan& plan, std::vector<Edge> edges,
               const Costs& costs, bool gradient_sync, int units_per_update,
               std::vector<int> most_micro_batches = {});

  /// The checked program of a round of that many micro-batches. `more`: edges that micro-batches of
  /// other sizes may need beside those of full ones.
  Program training(int units, const std::vector<Edge>& more = {}) const;
  /// Forwards only, on the same devices. `edges` of evaluation's graphs, which lack nodes such as
  /// Dropout, so that other stages exchange values.
  Program evaluation(int units, const std::vector<Edge>& edges) const;
  /// Warm-up forwards of each stage; empty if the schedule sets them itself.
  const std::vector<int>& warm_up() const { return warm_; }

 private:
  RunSchedule schedule_;
  std::vector<bool> recompute_;  // [stages]
  std::vector<int> replicas_;    // empty: one each
  std::vector<Edge> edges_;      // of full micro-batches
  std::vector<int> warm_;
  bool gradient_sync_;
  int units_per_update_;
};

/// Whether more than two replicas share a stage: NCCL sums their gradients in no fixed order.
bool has_many_replicas(const Program& program);
/// Error (kUsage) for --edge nccl where --deterministic asks for a fixed order of such sums.
void check_order_of_sums(const PipelineConfig& pipeline, bool many_replicas);

}  // namespace pipetrain
