// For GPUs: rows that begin at multiples of 16 bytes, which products read and write faster.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// The logits of a softmax cross-entropy and their gradient have padded rows (Layout::kPaddedRows)
/// where the classes are no multiple of kRowMultiple, and nothing but the loss and products reads
/// or makes them; no number changes. Behind all other passes. Returns of how many losses.
///
///   logits (8192, 50257)  rows 50264 elements apart   =  MatMul(h, wᵀ)
///   dlogits               the same                    →  MatMul(dlogits, w), MatMul(dlogitsᵀ, h)
int pad_logits(TrainingGraph& training);

}  // namespace pipetrain
