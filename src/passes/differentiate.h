// Adds the nodes of the backward pass to the graph.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Adds gradient nodes for every trained parameter that the loss depends on, and sets
/// TrainingGraph::accumulations and Parameter::gradient. A value used at several places gets the
/// sum of its consumers' gradients, in graph order; a parameter used at several places gets one
/// accumulator per use, summed in use order once a step (Part::kFinish). Error (kModel) lists every
/// operator that would need a gradient and has none.
void differentiate(TrainingGraph& training);

}  // namespace pipetrain
