// Chains and DAGs of element-wise nodes become one node each (ops/fused/fused.h), forward and
// backward.
#pragma once

#include "ops/fused/fused.h"
#include "passes/training_graph.h"

namespace pipetrain {

/// Fuses element-wise nodes over `types` (with broadcast operands, dropout, sums of gradients) that
/// follow one another. A group takes the place of its last node. All members are of one part, and
/// in the backward pass of one forward node (a fused one counts as one), so that no cut goes
/// through them. Values read outside of the group are kept. A group never keeps inputs alive that
/// are larger than the results it saves, and does not change any bit. Which nodes are fused depends
/// on the graph's structure alone, not on the size of the micro-batch. Returns how many groups
/// there are.
///
///   a = Add(x, skip)   y = Relu(a)     →  y = Fused{Add 0 1; Relu 2}(x, skip)
int fuse_elementwise(TrainingGraph& training, FusedTypes types = FusedTypes::kFloat32);

}  // namespace pipetrain
