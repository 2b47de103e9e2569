// Cuts a profiled network into stages, and derives their program, times and memory.
#pragma once

#include <cstddef>
#include <vector>

#include "partition/plan.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/stage/stage_arena.h"
#include "train/profiled_network.h"

namespace pipetrain {

/// The cuts of a network, and what follows from them.
struct CutPlan {
  Plan plan;
  PlanRequest request;                // that the plan answers
  std::vector<int> stage_of_forward;  // by node of the full micro-batch's graph
  ProgramMaker programs;
  Costs costs;            // of the stages, by which `prediction` was timed
  Program program;        // of a mini-batch; of some where rounds are long
  Simulation prediction;  // of `program`
  /// What each device of a stage will hold for the stage, as laid out for full micro-batches of
  /// training and validation.
  std::vector<ArenaBytes> memory;
};

/// Cuts a network. `planner_limit`: bytes of a device that the planner gets; 0: any. `cuts`: places
/// in the chain; empty: where the options, a plan's file or the planner say. Error (kUsage) for a
/// cut that does not fit the network or the schedule, kResource where no cut is within the limit.
/// `memory`: of the same stages, laid out before; empty: they are laid out, which takes the
/// network's initial weights.
CutPlan cut_into_stages(const ProfiledNetwork& network, std::size_t planner_limit,
                        const std::vector<int>& cuts, std::vector<ArenaBytes> memory = {});

}  // namespace pipetrain
