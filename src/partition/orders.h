// Topological orders of a network's operators. The order determines the costs of cuts.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/cost_graph.h"

namespace pipetrain {

/// Inputs first, otherwise as the nodes are numbered. Error (kModel) for a cycle.
std::vector<int> numbered_order(const CostGraph& graph);
/// Nodes in the order in which they become ready.
std::vector<int> breadth_first_order(const CostGraph& graph);
/// Of the ready nodes the one that became ready last.
std::vector<int> depth_first_order(const CostGraph& graph);

struct CutOrderOptions {
  double noise = 0;  // 0: none; 1: as much as an average output
  std::uint32_t seed = 0;
  bool from_the_end = false;  // builds the order backwards
};
/// Of the ready nodes the one that leaves the fewest bytes alive; the first of equals.
std::vector<int> smallest_cut_order(const CostGraph& graph, const CutOrderOptions& options = {});

/// All of the above, with `noisy` variants of the last; each order once.
std::vector<std::vector<int>> order_portfolio(const CostGraph& graph, int noisy);

}  // namespace pipetrain
