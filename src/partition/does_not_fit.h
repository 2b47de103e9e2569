// The error for a plan that needs more memory than there is, with settings that would fit.
#pragma once

#include "partition/stage_cost.h"

namespace pipetrain {

/// Throws the Error (kResource) for `stage`, which is the stage at index `at` of a plan with given
/// cuts.
[[noreturn]] void fail_for_memory(const StageCostModel& model, int stages, int at,
                                  const StagePlan& stage);

/// The same when no plan of plan_devices() fits on so many devices.
[[noreturn]] void fail_for_memory_of_devices(const ChainCosts& chain, const PlanRequest& request,
                                             int devices);

/// The same when no cut into `stages` fits; describes the cut that needs least memory.
[[noreturn]] void fail_for_memory(const StageCostModel& model, int stages);

}  // namespace pipetrain
