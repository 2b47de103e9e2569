// The epilogue of a matrix product on a GPU: computed by cuBLASLt where it has a kernel for it,
// else by hand-written kernels.
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/kernel/kernel.h"
#include "ops/reduce/reduce_launch_cuda.h"

namespace pipetrain {

struct ProductEpilogue {
  enum class Kind : std::uint8_t { kNone, kActivation, kSums } kind = Kind::kNone;
  bool bias = false;
  bool keeps = false;  // of kActivation: the input of the function is also a result
  int summed = 0;      // of kSums: the operand
  /// Whether cuBLASLt computes this epilogue: a tanh Gelu, or sums over the operand of a single
  /// product. Its Relu makes 0 of NaN, which would hide that a training diverges.
  bool by_library = false;

  elementwise::Coded function;  // of kActivation
  reduce::ReduceWalk sums;      // of kSums
};

/// Error (kInternal) unless the node is a MatMul, MatMulActivation or MatMulSums.
ProductEpilogue product_epilogue(const KernelRequest& request);

/// Additional workspace bytes for finish_product().
std::size_t finish_bytes(const ProductEpilogue& epilogue);
/// The tensor that a product without its epilogue (but with its bias) is written to.
const Tensor& product_place(const ProductEpilogue& epilogue, std::span<const Tensor> out);
/// Adds the bias, the node's third operand, to every row of the product.
void add_bias(const Tensor& product, std::span<const Tensor> in, const CudaQueue& queue);
/// Computes the rest of the epilogue.
void finish_product(const ProductEpilogue& epilogue, std::span<const Tensor> in,
                    std::span<const Tensor> out, std::byte* workspace, const CudaQueue& queue);

}  // namespace pipetrain
