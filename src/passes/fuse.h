// Fuses activations into the preceding BatchNorm or GroupNorm, forward and backward.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Which activations a device computes together with a normalization.
enum class NormActivations {
  kLimits,       // Relu and Clip
  kElementwise,  // also Silu, HardSwish and other functions whose gradient takes their operand
};

/// BatchNorm or GroupNorm and the activation that alone reads its result become one node, and so do
/// their gradients: one pass over memory instead of two, and z is not stored. Returns how many.
///
///   z = BatchNorm(x)   y = Relu(z)          →  y = BatchNorm{clip_min: 0}(x)
///   dz = ReluGrad(dy, y)
///   dx = BatchNormGrad(dz, x)               →  dx = BatchNormGrad{clip_min: 0}(dy, x)
int fuse_norm_activations(TrainingGraph& training, NormActivations activations);

/// Removes nodes that have a replacement and redirects references to it. `heir`: the replacement by
/// node.
void remove_nodes(TrainingGraph& training, const std::vector<NodeId>& heir);

}  // namespace pipetrain
