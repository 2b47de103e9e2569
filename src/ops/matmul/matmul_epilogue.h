// Matrix products with the epilogues of GPU libraries: an activation of the result, or sums over an
// operand. passes/fuse_matmul_epilogues.h makes them.
//
//   MatMulActivation{trans_a, trans_b, activation, approximate}(a, b[, bias]) -> y[, z]
//     z = MatMul(a, b[, bias])   y = Relu(z) or Gelu(z)
//   MatMulSums{trans_a, trans_b, summed}(a, b) -> y, sums
//     y = MatMul(a, b)   sums: operand `summed` (0: a, 1: b) summed over the inner dimension,
//     which is the operand's axis 0:
//
//       weight gradient  (K, M)ᵀ (K, N)   sums (M) or (N): the gradient of the bias
#pragma once

#include <span>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// The nodes that a MatMulActivation stands for.
Node product_of(const Node& node);
Node activation_of(const Node& node);

std::span<const KernelEntry> matmul_epilogue_reference_kernels();

}  // namespace pipetrain
