// The order in which the operators of a model are cut into stages: every topological order gives
// the same results, but different cuts.
#pragma once

#include <vector>

#include "partition/cost_graph.h"
#include "partition/plan.h"
#include "passes/training_graph.h"
#include "profile/profile.h"

namespace pipetrain {

/// A model as a network to plan, node i being element i of the chain. Its prices are nearly those
/// of the chain: a node sends all its outputs together, and what two nodes need is held by the
/// first.
CostGraph cost_graph_of(const TrainingGraph& training, const Chain& chain, const ChainCosts& costs);

/// Whether the network is small enough for planning it in several orders.
bool can_reorder(const ChainCosts& costs, int stages);

/// The order for a plan of request.stages stages, as order_of() gives it; empty where none is
/// better than that of the chain. Candidates come from the portfolio of plan_graph(); which one is
/// taken is decided by the exact plan of each, plan_stages(): another order must make the slowest
/// stage 1 % faster, or send fewer bytes over the cuts without making it slower. Where
/// can_reorder() says no, none is tried.
std::vector<int> better_order(const TrainingGraph& training, const Profile& profile,
                              const Chain& chain, const ChainCosts& costs,
                              const PlanRequest& request);

}  // namespace pipetrain
