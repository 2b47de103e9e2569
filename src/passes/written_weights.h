// Checks that a model has weights: one written for planning has none.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Refuses (Error kModel) a graph with parameters that have no values, because their data file was
/// never written. Planning needs no values; call this before running kernels.
void check_weights_are_written(const TrainingGraph& training);

}  // namespace pipetrain
