// What is computed once for each version of the weights, and not for each micro-batch.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Marks nodes that depend on parameters and constants only as Part::kPrepare.
///
/// Nodes that repeat a weight for each sample stay in the forward pass, as all that depends on
/// them: their results grow with the micro-batch, but the gradients that micro-batches of several
/// sizes add up must have one size, that of the weight. TrainingGraph::repeating lists them. They
/// are found by their shapes in the graph with the most samples in a micro-batch; others, whose
/// `first` this is, have the same.
void mark_preparation(TrainingGraph& training, const TrainingGraph* first = nullptr);

}  // namespace pipetrain
