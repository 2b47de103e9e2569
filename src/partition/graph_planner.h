// Plans a network without a fixed order: finds an order and its best plan.
#pragma once

#include <cstddef>
#include <vector>

#include "partition/cost_graph.h"
#include "partition/plan.h"

namespace pipetrain {

struct GraphPlan {
  std::vector<int> order;  // of the nodes
  ChainCosts chain;        // in this order
  Plan plan;               // plan_devices() of it
  int orders = 0;          // that were tried
  std::size_t ideals = 0;  // of the network; 0: too many to look at
  /// No plan for any order has a faster slowest stage.
  bool exact = false;
};

/// Tries a portfolio of orders and local changes of the best; where the network has few ideals, all
/// orders. Otherwise as plan_devices(), whose errors it has; (kModel) for a graph with a cycle.
GraphPlan plan_graph(const CostGraph& graph, const PlanRequest& request);

}  // namespace pipetrain
