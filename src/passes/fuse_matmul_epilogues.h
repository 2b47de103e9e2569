// For GPUs: what belongs to a product and lies around it becomes part of its node, so that the
// library that multiplies can do it on the way (ops/matmul/matmul_epilogue.h).
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Biases that are added to a product alone become its third operand; before element-wise nodes are
/// fused, which would take them. Returns how many.
///
///   z = MatMul(x, w)   y = Add(z, b)   →   y = MatMul(x, w, b)
int fold_biases(TrainingGraph& training);

struct FusedMatMulEpilogues {
  int activations = 0, sums = 0;
};

/// A Relu or a Gelu by tanh that no element-wise chain has taken goes into the product before it,
/// and the gradient of a bias into that of the weight, which reads the same operand. Products and
/// what follows in the backward pass stay apart: they belong to two forward nodes, between which a
/// cut may go. A Gelu by erf stays a node: the library has none.
///
///   z = MatMul(x, w, b)   y = Gelu(z)           →   y, z = MatMulActivation{Gelu}(x, w, b)
///   dw = MatMul(xᵀ, dz)   db = ReduceSum(dz)    →   dw, db = MatMulSums(xᵀ, dz)
FusedMatMulEpilogues fuse_matmul_epilogues(TrainingGraph& training);

}  // namespace pipetrain
