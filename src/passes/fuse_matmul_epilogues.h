// For GPUs: fuses biases and activations into the epilogue of a matmul
// (ops/matmul/matmul_epilogue.h).
#pragma once

#include "passes/training_graph.h"

namespace pipetrain {

/// Biases that are added to a matmul become its third operand. Runs before the element-wise fusion,
/// which would take them. Returns how many.
///
///   z = MatMul(x, w)   y = Add(z, b)   →   y = MatMul(x, w, b)
int fold_biases(TrainingGraph& training);

struct FusedMatMulEpilogues {
  int activations = 0, sums = 0;
};

/// A Relu or tanh-Gelu that is not part of an element-wise chain is fused into the preceding
/// matmul, and the gradient of a bias into that of the weight, which reads the same operand. In the
/// backward pass matmuls and the nodes after them are not fused: they belong to two forward nodes,
/// between which a cut may go. An erf-Gelu is not fused, since cuBLASLt has none.
///
///   z = MatMul(x, w, b)   y = Gelu(z)           →   y, z = MatMulActivation{Gelu}(x, w, b)
///   dw = MatMul(xᵀ, dz)   db = ReduceSum(dz)    →   dw, db = MatMulSums(xᵀ, dz)
FusedMatMulEpilogues fuse_matmul_epilogues(TrainingGraph& training);

}  // namespace pipetrain
