// Keys that are equal for nodes that run the same kernel.
#pragma once

#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "passes/training_graph.h"

namespace pipetrain {

/// By value: whether anything reads it. Outputs that nobody reads are not computed.
std::vector<bool> values_read(const TrainingGraph& training);

/// Operator, attributes that matter for speed, types of inputs and of outputs that are read.
std::string node_key(const Graph& graph, const Node& node, const std::vector<bool>& is_read);

/// Nodes by kernel.
struct NodeGroups {
  std::vector<int> of_node;       // equal numbers for nodes that differ in nothing but their names,
                                  // from 0 on; -1: a view
  std::vector<std::string> keys;  // node_key() by number
};
NodeGroups group_nodes(const TrainingGraph& training, const std::vector<bool>& is_read);

/// The optimizer's step over one byte of a parameter, as a key beside those of nodes.
std::string update_key(const OptimizerSettings& optimizer);

}  // namespace pipetrain
