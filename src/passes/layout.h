// Chooses the memory layout of every value: around convolutions the tensors of a region are
// channel-blocked or have their channels last, with explicit Reorder nodes where such a region
// begins and ends.
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Gives convolutions and what can follow them (BatchNorm, GroupNorm, pooling, elementwise
/// operators, Concat and slices of whole channel blocks) `blocked` tensors, forward and backward.
/// Depends on shapes only. kRowMajor: changes nothing.
///
/// kChannelsLast is for GPUs, whose tensor cores multiply channels: a convolution whose results
/// fill whole groups of 8 has all its tensors so, its weight too (reordered once per weight
/// version; weights' gradients stay row-major), and global pooling reads them as they are.
///
///   x ─Conv─ y ─Relu─ r ─Conv─ z ─Flatten─ f      x has 3 channels
///   x ─Conv─ y/8 ─Relu─ r/8 ─Conv─ z/8 ─Reorder─ z ─Flatten─ f
void choose_layouts(TrainingGraph& training, Layout blocked);

}  // namespace pipetrain
