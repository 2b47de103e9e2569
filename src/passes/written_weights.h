// Whether a model has weights to train: one that was written for planning has none.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Refuses (Error kModel) a graph with parameters that have no values, because their data file was
/// never written. Planning needs no values; whatever runs kernels on them calls this first.
void check_weights_are_written(const TrainingGraph& training);

}  // namespace pipetrain
