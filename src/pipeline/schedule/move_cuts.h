// Tunes cuts by simulation. plan_stages() minimizes the slowest stage, which bounds a full pipeline
// with one stage per device. With several stages per device their sum matters, and in a short round
// so do fill and drain.
#pragma once

#include "partition/plan.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

/// Returns the plan with its cuts moved, one or two neighbours at a time, for as long as the
/// simulated round takes less time (a local search of bounded work); unchanged where that gains
/// less than 1 %. A cut that does not fit into memory, or only with other recomputes, is not taken.
/// `request` and `plan`: of plan_stages(). `program`: a round of these stages, one device each or
/// several on a device, lowered with edges_of_plan(). `costs`: of the plan, with its links.
Plan move_cuts(const ChainCosts& chain, const PlanRequest& request, const Plan& plan,
               Program program, Costs costs);

}  // namespace pipetrain
