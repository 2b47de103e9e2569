// Chooses the memory layout of every value: around convolutions the tensors of a region are
// channel-blocked, with explicit Reorder nodes where such a region begins and ends.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Gives convolutions and what can follow them (BatchNorm, pooling, elementwise operators, Concat
/// and slices of whole channel blocks) `blocked` tensors, forward and backward. Depends on shapes
/// only. kRowMajor: changes nothing.
///
///   x ─Conv─ y ─Relu─ r ─Conv─ z ─Flatten─ f      x has 3 channels
///   x ─Conv─ y/8 ─Relu─ r/8 ─Conv─ z/8 ─Reorder─ z ─Flatten─ f
void choose_layouts(TrainingGraph& training, Layout blocked);

}  // namespace pipetrain
