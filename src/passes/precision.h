// Mixed precision: chooses the element type in which values are stored. Operands and results of
// matmul/conv (MatMul, Conv, attention, recurrent layers) are narrow; arithmetic between loads and
// stores is float.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Gives values of the forward and backward pass the type `narrow` (bfloat16, float16; float
/// changes nothing). Depends on the graph alone. Mixed-precision hardware multiplies narrow
/// operands and accumulates in float, so a device may choose its kernel.
///
///   operands of matmul/conv  narrow; parameters keep their float master and are cast once per
///                            version (Part::kPrepare), inputs of the model where they are read
///   results of matmul/conv   narrow, gradients of activations too; so are the logits that a
///                            softmax cross-entropy is trained on, and their gradient
///   elementwise, movement,   as their operands: narrow if all are
///   pooling, norms
///   everything else          float: weight gradients, accumulators, optimizer, reductions,
///                            softmax, statistics, the loss, outputs of the model, exponentials
///                            and roots, positions at which images are sampled
///
/// Values that only matmul/conv reads are stored narrow whatever computes them: it would round them
/// anyway. Before fuse_elementwise(), whose nodes say how each of their steps is rounded: Error
/// (kInternal) when there are such nodes.
void choose_precision(TrainingGraph& training, DType narrow);

}  // namespace pipetrain
