// When two nodes run the same kernel.
#pragma once

#include <string>
#include <vector>

#include "passes/training_graph.h"

namespace pipetrain {

/// By value: whether anything reads it. Outputs that nobody reads are not computed.
std::vector<bool> values_read(const TrainingGraph& training);

/// Operator, attributes that matter for speed, types of inputs and of outputs that are read.
std::string node_key(const Graph& graph, const Node& node, const std::vector<bool>& is_read);

}  // namespace pipetrain
