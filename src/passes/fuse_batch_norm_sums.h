// Fuses the sum after a residual block into the BatchNorm before it, in the forward pass.
#pragma once

#include <cstdint>

#include "passes/training_graph.h"

namespace pipetrain {

/// Norms that are fused: all, or those that choose_layouts() gives channels last, because a GPU's
/// kernels for others do not add.
enum class SummedNorms : std::uint8_t { kAll, kChannelsLast };

/// A BatchNorm, the Add that alone reads its result, and the Relu that alone reads the sum, if
/// there is one, become one node: the kernel adds as it normalizes. Returns how many.
///
///   z = BatchNorm(x)   s = Add(z, r)   y = Relu(s)   →   y = BatchNorm{clip_min: 0}(x, …, r)
int fuse_batch_norm_sums(TrainingGraph& training, SummedNorms norms);

}  // namespace pipetrain
