// Weight gradients of small micro-batches: a product that sums over few samples costs mostly what
// reading and writing the weight's gradient costs. Where the operands are small beside the weight,
// those of a few micro-batches are batched and the gradient is computed over all of them at once.
// Few, since what is computed at the end of a step keeps other stages waiting.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Turns such nodes into Part::kBatchGradient ones over batched values, for steps of so many
/// micro-batches. Depends on shapes only. After all passes that move nodes. Returns how many nodes
/// there are.
int batch_weight_gradients(TrainingGraph& training, std::int64_t micro_batches_of_step);

/// The same nodes as in `first`, which is the same network with larger micro-batches: a step may
/// end with smaller ones.
void batch_weight_gradients_like(const TrainingGraph& first, TrainingGraph& training);

/// How often a node runs for each micro-batch: 0 if it is once a step, less than 1 if it is once
/// for several micro-batches.
double runs_per_micro_batch(const TrainingGraph& training, const Node& node);

}  // namespace pipetrain
