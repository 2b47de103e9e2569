// Fuses what follows an operator into it, on the whole graph, forward and backward.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// BatchNorm and the Relu or Clip that alone reads its result become one node, and so do their
/// gradients: one pass over memory each where there were two. Returns how many.
///
///   z = BatchNorm(x)   y = Relu(z)          →  y = BatchNorm{clip_min: 0}(x)
///   dz = ReluGrad(dy, y)
///   dx = BatchNormGrad(dz, x)               →  dx = BatchNormGrad{clip_min: 0}(dy, x)
int fuse_batch_norm_activations(TrainingGraph& training);

/// Takes the nodes out that have an heir; what belonged to one of them belongs to its heir from now
/// on. `heir`: by node.
void remove_nodes(TrainingGraph& training, const std::vector<NodeId>& heir);

}  // namespace pipetrain
