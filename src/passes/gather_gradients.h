// Weight gradients of small micro-batches: a product that sums over few samples costs mostly what
// reading and writing the weights' gradient costs. Where the operands of a whole step are small
// beside the weights, they are gathered and the gradient is computed once a step over all of them.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Turns such nodes into Part::kBatchGradient ones over gathered values; `micro_batches` of a step.
/// Depends on shapes only. After all passes that move nodes. Returns how many nodes there are.
int gather_gradients(TrainingGraph& training, std::int64_t micro_batches);

/// The same nodes as in `first`, which is the same network with larger micro-batches: a step may
/// end with smaller ones.
void gather_gradients_like(const TrainingGraph& first, TrainingGraph& training);

}  // namespace pipetrain
