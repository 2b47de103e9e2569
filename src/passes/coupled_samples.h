// Networks whose samples are not independent: their losses and gradients change with the size of a
// micro-batch.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// The first node before the loss in which samples of a micro-batch see each other, as `"name"
/// (Operator)`: a product of activations over the batch, as in contrastive losses, or a reduction,
/// softmax, sum or selection along it. BatchNormalization is left out. Empty: none was found; what
/// a Reshape or a Transpose has moved from axis 0 is not followed.
std::string find_coupled_samples(const TrainingGraph& training);

}  // namespace pipetrain
