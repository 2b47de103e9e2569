// Converts a plan to the simulator's costs.
#pragma once

#include <cstddef>
#include <vector>

#include "partition/plan.h"
#include "pipeline/schedule/warm_up.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

/// Returns the seconds of every stage of a plan of this chain. An update occurs once per
/// `micro_batches` micro-batches and includes the stage's step time and the reduce over its
/// replicas. Links are not set.
Costs costs_of_plan(const Plan& plan, const ChainCosts& chain, int micro_batches);

/// Adds the sums of gradients of stages that the program, not the plan, gives several devices: over
/// the link between those farthest apart.
void add_sums(const Plan& plan, const PlanRequest& request, const Topology& topology,
              const Program& program, Costs& costs);

/// Returns the edges of the plan: every stage to the next and back, with the bytes of all tensors
/// that cross the cut. (A model's own edges may skip stages: slice.h.)
std::vector<Edge> edges_of_plan(const Plan& plan, const ChainCosts& chain);

/// What balanced_warm_up() needs of a plan with these edges, as `costs` price its stages and links.
WarmUpCosts warm_up_costs(const Plan& plan, const std::vector<Edge>& edges, const Costs& costs);

/// How many micro-batches each device of a stage can hold at once with so much memory; no fewer
/// than the plan counts.
std::vector<int> most_micro_batches_within(const Plan& plan, std::size_t memory_limit_bytes);

/// The warm-up costs with this limit of micro-batches, too; 0: none.
WarmUpCosts with_memory_units(WarmUpCosts costs, int memory_units);

}  // namespace pipetrain
