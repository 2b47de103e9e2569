// Chooses the element type in which values are stored: in mixed precision, what goes into products
// (MatMul, Conv, attention, recurrent layers) and what follows from it is narrow, all arithmetic
// between loads and stores is float's.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Gives values of the forward and backward pass the type `narrow` (bfloat16, float16; float
/// changes nothing). Depends on the graph alone. A product of narrow operands with float sums is
/// what mixed-precision hardware computes, so a device is free in how it multiplies.
///
///   operands of a product    narrow; parameters keep their float master and are cast once per
///                            version (Part::kPrepare), inputs of the model where they are read
///   results of a product     narrow, gradients of activations too; so are the logits that a
///                            softmax cross-entropy is trained on, and their gradient
///   elementwise, movement,   as their operands: narrow if all are
///   pooling, norms
///   everything else          float: weight gradients, accumulators, optimizer, reductions,
///   softmax,
///                            statistics, the loss, outputs of the model, exponentials and roots
///
/// What only products read is stored narrow whoever computes it: they would round it themselves.
/// Before fuse_elementwise(), whose nodes say how each of their steps is rounded: Error (kInternal)
/// when there are such nodes.
void choose_precision(TrainingGraph& training, DType narrow);

}  // namespace pipetrain
