// For GPUs: pads rows to multiples of 16 bytes, for faster matmuls.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// The logits of a softmax cross-entropy and their gradient have padded rows (Layout::kPaddedRows)
/// where the number of classes is no multiple of kRowMultiple and only the loss and matmuls use
/// them. No value changes. Runs after all other passes. Returns the number of losses.
///
///   logits (8192, 50257)  rows 50264 elements apart   =  MatMul(h, wᵀ)
///   dlogits               the same                    →  MatMul(dlogits, w), MatMul(dlogitsᵀ, h)
int pad_logits(TrainingGraph& training);

/// So are weights (matrices) that a Cast rounds for matmuls alone, where the number of rows or
/// columns is no multiple of kRowMultiple: matmuls with padded logits can then take the padding for
/// classes. Returns the number of weights.
///
///   w (768, 50257) float32  →  Cast  →  bfloat16, rows 50264 elements apart  →  MatMul(h, w)
///   w (50257, 768)             Cast  →  bfloat16, 50264 rows                 →  MatMul(h, wᵀ)
int pad_weights(TrainingGraph& training);

}  // namespace pipetrain
