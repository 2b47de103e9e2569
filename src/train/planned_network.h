// A profiled network cut into stages: the plan, the program of a step, what it will take and hold.
#pragma once

#include <cstddef>
#include <vector>

#include "pipeline/simulate/timeline.h"
#include "train/cut_plan.h"
#include "train/profiled_network.h"

namespace pipetrain {

class PlannedNetwork : public ProfiledNetwork {
 public:
  /// Cuts the chain as the options or a plan's file say, or as the planner finds best within the
  /// memory limit. Error (kResource) where a device would hold more, kUsage for cuts and schedules
  /// that do not go together.
  explicit PlannedNetwork(ProfiledNetwork network);

  const Plan& plan() const { return cut_.plan; }
  const PlanRequest& plan_request() const { return cut_.request; }
  const std::vector<int>& stage_of_forward() const { return cut_.stage_of_forward; }
  int stages() const { return static_cast<int>(cut_.plan.stages.size()); }
  int devices() const { return cut_.program.devices; }
  /// Whether some stage runs on several devices.
  bool has_replicas() const;
  /// Of rounds of any length.
  const ProgramMaker& programs() const { return cut_.programs; }

  /// What the simulator says about one step of the full mini-batch.
  const Simulation& prediction() const { return cut_.prediction; }
  /// The program that prediction() timed.
  const Program& predicted_program() const { return cut_.program; }
  const Costs& predicted_costs() const { return cut_.costs; }
  const ArenaBytes& predicted_memory(int stage) const {
    return cut_.memory[static_cast<std::size_t>(stage)];
  }
  /// What the fullest device will hold for all its stages.
  std::size_t most_device_bytes() const;
  /// Predicted seconds of a step: the simulated makespan and the wake-up of the waiting thread;
  /// with several processes or asynchronous schedules the simulated period. At least the total work
  /// divided by the cores that the stages share.
  double predicted_step_seconds() const;
  /// The events and buckets of prediction(); where devices share cores, stretched to that time.
  Events predicted_events() const;
  std::vector<BucketEvent> predicted_buckets() const;
  /// The idle share of the devices in such a step.
  double predicted_bubble() const;
  /// Whether the run has such steps: replicas wait for each other, and the samples fill a
  /// mini-batch.
  bool has_predicted_steps() const;
  /// Whether there are fewer cores than stages times threads, or fewer GPUs than devices.
  bool shares_cores() const;

  /// Puts measured times into a profile that was an estimate, and predicts again. One stage only:
  /// what is cut stays as it is. `times` are of one step.
  void take_measured(const KernelTimes& times, double update_seconds);

 private:
  /// What the simulated times are multiplied by for predicted_events().
  double stretch_of_events() const;
  std::size_t memory_excess() const;
  void stay_within_memory();

  std::size_t planner_limit_;  // bytes of a device that the planner gets
  std::vector<int> cuts_;      // that a search has found, while they are within the limit
  CutPlan cut_;
};

/// All from the options to the plan.
PlannedNetwork plan_network(const RunConfig& config, RunMode mode = RunMode::kTrain,
                            ProcessGroup* processes = nullptr, const Network* same_data = nullptr);

}  // namespace pipetrain
