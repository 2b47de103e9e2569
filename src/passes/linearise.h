// The forward pass as a chain that can be cut anywhere.
#pragma once

#include <span>
#include <vector>

#include "passes/training_graph.h"

namespace pipetrain {

/// Orders the forward nodes and counts the bytes that would cross each cut (each value once per cut
/// that it spans). The order is the graph's or, where fewer bytes cross its cuts, that of the
/// smallest live cut; it depends on the graph alone. A plan records any other order.
Chain linearise(const TrainingGraph& training);

/// The chain in a given order: order[i] is the index of the forward node at place i. Error (kUsage)
/// unless it has each of them once and inputs first.
Chain chain_in_order(const TrainingGraph& training, std::span<const int> order);
/// That order of a chain.
std::vector<int> order_of(const TrainingGraph& training, const Chain& chain);
/// The dependencies of each chain element: the places of the elements whose outputs its forward
/// node or its gradients read, ascending.
std::vector<std::vector<int>> inputs_of(const TrainingGraph& training, const Chain& chain);

/// Stage of every forward node for stages that start at the chain positions `starts` (the first is
/// 0, ascending). Nodes of other parts have stage -1; see stages_of_all().
std::vector<int> stages_of_chain(const TrainingGraph& training, const Chain& chain,
                                 const std::vector<int>& starts);

/// Whether two variants of a model have the same nodes in the same order.
bool has_same_nodes(const TrainingGraph& one, const TrainingGraph& other);
/// Whether their forward nodes compute the same nodes of the model.
bool has_same_groups(const TrainingGraph& one, const TrainingGraph& other);

/// Maps the stages of one graph to another variant of the same model (another micro-batch size,
/// evaluation), by ONNX node.
std::vector<int> carry_stages(const TrainingGraph& from, const std::vector<int>& stages,
                              const TrainingGraph& to);

}  // namespace pipetrain
