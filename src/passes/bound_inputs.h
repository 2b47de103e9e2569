// The tables that a model's integer inputs index, so that wrong ids are found in the data.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Sets GraphInput::upper_bound to the rows of the table that each integer input indexes. For a
/// graph with the model's own Gather nodes, before any are fused.
void bound_inputs(TrainingGraph& training);

}  // namespace pipetrain
