// Accumulators that the same network with micro-batches of other sizes shares.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Brings the accumulations of `training`, which is `first` with fewer samples in a micro-batch,
/// into the order of those of `first`: shapes may fuse differently, and a fused node may use
/// weights in another order. Error (kUsage) where a gradient has another size.
void match_accumulations(const TrainingGraph& first, TrainingGraph& training);

}  // namespace pipetrain
