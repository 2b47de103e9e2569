// Fuses the sum behind a residual block into the BatchNorm before it, in the forward pass.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// A BatchNorm, the Add that alone reads its result, and the Relu that alone reads the sum, if
/// there is one, become one node: the kernel adds as it normalizes. Returns how many.
///
///   z = BatchNorm(x)   s = Add(z, r)   y = Relu(s)   →   y = BatchNorm{clip_min: 0}(x, …, r)
int fuse_batch_norm_sums(TrainingGraph& training);

}  // namespace pipetrain
