// The costs of a network as a graph: times, saved bytes and outputs of each operator, and its
// inputs.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "profile/chain_cost.h"

namespace pipetrain {

/// One operator with the gradient work that belongs to it. Times and bytes are of one micro-batch.
struct CostNode {
  std::string name;
  double forward_seconds = 0;
  double input_gradient_seconds = 0;
  double weight_gradient_seconds = 0;
  double step_seconds = 0;  // once per optimizer step
  std::size_t parameter_bytes = 0;
  std::size_t saved_bytes = 0;      // kept from forward to backward
  std::size_t transient_bytes = 0;  // alive only while it runs
  std::size_t output_bytes = 0;     // all its outputs together; travel forward over a cut
  std::size_t gradient_bytes = 0;   // of these outputs; travel back
  std::vector<int> inputs;          // the nodes whose outputs it reads, each once
};

/// Nodes in any order. An input of the network is a node without inputs.
struct CostGraph {
  std::vector<CostNode> nodes;
};

/// The readers of each node's outputs, ascending. Error (kModel) for an input that is no node.
std::vector<std::vector<int>> readers_of(const CostGraph& graph);

/// The nodes of the graph in the given order as a chain. A tensor crosses every cut between the
/// node that makes it and its last reader, once, however many read it: sent on from stage to stage.
/// `order` holds every node once, inputs first; Error (kUsage) if it does not.
ChainCosts chain_of(const CostGraph& graph, std::span<const int> order);

}  // namespace pipetrain
