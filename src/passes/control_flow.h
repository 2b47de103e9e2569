// Lowering replaces If by the branch taken, and unrolls Loop and Scan. The condition or trip count
// must be known by then.
#pragma once

#include <functional>
#include <vector>

#include "graph/builder.h"
#include "onnx_io/subgraph.h"
#include "passes/sequences.h"

namespace pipetrain {

/// Adds the nodes of a sub-graph, whose inputs have these values, and returns its outputs.
using AddSubgraph =
    std::function<std::vector<TensorOrList>(const OnnxSubgraph&, const std::vector<TensorOrList>&)>;

/// The values of the outputs of an If, Loop or Scan. Error (kModel) with a hint when what is run
/// depends on data.
std::vector<TensorOrList> expand_control_flow(const OnnxNode& node,
                                              const std::vector<TensorOrList>& inputs,
                                              GraphBuilder& builder, const AddSubgraph& add);

}  // namespace pipetrain
