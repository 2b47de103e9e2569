// Runs a graph node by node on host tensors: for checks that need numbers before training, and for
// tests.
#pragma once

#include <map>
#include <vector>

#include "graph/graph.h"
#include "ops/registry/registry.h"

namespace pipetrain {

/// Computes `wanted` from the fed inputs and the graph's own parameters, states and constants.
std::vector<HostTensor> execute(const Graph& graph, Backend backend,
                                const std::map<ValueId, HostTensor>& feeds,
                                const std::vector<ValueId>& wanted);

}  // namespace pipetrain
