// Networks that combine samples: their losses and gradients change with the size of a micro-batch.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// The first node that combines samples of a micro-batch, as `"name" (Operator)`: a product of
/// activations over the batch, as in contrastive losses, or a reduction, softmax, sum, selection,
/// split or recurrence along it. BatchNormalization is left out. Empty: none was found; what a
/// Reshape or a Transpose has moved from axis 0 is not followed, and of micro-batches of one sample
/// only products of samples with samples are told.
std::string find_coupled_samples(const TrainingGraph& training);

}  // namespace pipetrain
