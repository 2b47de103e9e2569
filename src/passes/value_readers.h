// Who reads the values of a training graph: what passes ask before they change or remove one.
#pragma once

#include <set>
#include <vector>

#include "passes/training_graph.h"

namespace pipetrain {

/// [value]: the nodes that read it, in graph order; one that reads it twice is there twice.
std::vector<std::vector<NodeId>> readers_of_values(const Graph& graph);

/// Values that are read by more than nodes: outputs, and what is added to gradients.
std::set<ValueId> values_read_outside(const TrainingGraph& training);

}  // namespace pipetrain
