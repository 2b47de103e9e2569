// Batched weight gradients: with few samples a weight gradient is bound by reading and writing the
// accumulator. Where the operands are small compared to the weight, the stage keeps those of a few
// micro-batches and computes the gradient over all of them at once. Only a few, since work at the
// end of a step delays other stages.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Turns such nodes into Part::kBatchGradient nodes over batched values, for steps of this many
/// micro-batches. Depends on shapes only. Runs after all passes that move nodes. Returns the number
/// of such nodes.
int batch_weight_gradients(TrainingGraph& training, std::int64_t micro_batches_of_step);

/// The same for the smaller last micro-batch of a step: batches the same nodes as `first`, the
/// network with full micro-batches.
void batch_weight_gradients_like(const TrainingGraph& first, TrainingGraph& training);

/// How often a node runs per micro-batch: 0 if once per step, less than 1 if once for several
/// micro-batches.
double runs_per_micro_batch(const TrainingGraph& training, const Node& node);

}  // namespace pipetrain
