// Builds a plan from chosen stages: its costs and the reasons for its cuts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "partition/stage_cost.h"

namespace pipetrain {

/// The choices for a stage; elements and devices in order.
struct StageDecision {
  int first = 0, last = 0;
  DeviceRange devices;
  bool recompute = false;
};

/// Where stage `index` lies among its neighbours.
StagePlace place_of(const StageCostModel& model, std::span<const StageDecision> stages,
                    std::size_t index);

/// Everything but notes and lower bound.
Plan build_plan(const StageCostModel& model, std::span<const StageDecision> stages);

/// Says which stages recompute because they would not fit otherwise; nothing where none does.
void add_recompute_note(const PlanRequest& request, Plan& plan);

struct LowerBound {
  double seconds = 0;  // of the slowest stage, for this chain in any order and any cut
  std::string reason;
};
/// For exactly `stages` stages of one device each.
LowerBound lower_bound_of_stages(const StageCostModel& model, int stages);
/// For any number of stages and replicas on the model's devices.
LowerBound lower_bound_of_devices(const StageCostModel& model);

}  // namespace pipetrain
