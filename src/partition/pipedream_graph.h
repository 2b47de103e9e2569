// PipeDream's profiles and plans in the planner's own model, which charges every tensor that
// crosses a cut once, and always.
#pragma once

#include "partition/cost_graph.h"
#include "partition/graph_planner.h"
#include "partition/pipedream_compat.h"

namespace pipetrain {

/// The profile as a network to plan; node i stays node i, and the whole mini-batch of the profile
/// is one micro-batch. Inputs cost nothing, as in PipeDream: data are read where they are used. A
/// Concat hands on all that it joins; the profiler may have written down its first input alone. The
/// backward pass of a layer with weights is split in two halves, since the profile does not say.
CostGraph cost_graph_of(const PipeDreamProfile& profile);

/// PipeDream's plan priced by the planner's model. On several levels of machines its stages lie as
/// PipeDream puts them: a stage that is replicated over groups has devices in each of them, beside
/// those of its neighbours. The planner never does that, and `first_device` cannot say it.
GraphPlan price_compat_plan(const PipeDreamProfile& profile, const CostGraph& graph,
                            const CompatPlan& compat, const PlanRequest& request);

/// plan_graph(), or if it is better: the best plan for the order of `known`, or `known` itself,
/// which may lie on devices as the planner never puts a stage. So the result is never slower than
/// `known`. Errors as of plan_graph().
GraphPlan plan_not_slower_than(const GraphPlan& known, const CostGraph& graph,
                               const PlanRequest& request);

}  // namespace pipetrain
