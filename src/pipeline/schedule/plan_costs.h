// From a plan to what the simulator needs.
#pragma once

#include "partition/plan.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

/// Returns the seconds of every stage of a plan of this chain. An update comes once in
/// `micro_batches` micro-batches and takes what the stage's steps take, and the sum over its
/// replicas. Links are not set.
Costs costs_of_plan(const Plan& plan, const ChainCosts& chain, int micro_batches);

/// Returns the edges of the plan: every stage to the next and back, with the bytes of all tensors
/// that cross the cut. (A model's own edges may skip stages: slice.h.)
std::vector<Edge> edges_of_plan(const Plan& plan, const ChainCosts& chain);

}  // namespace pipetrain
