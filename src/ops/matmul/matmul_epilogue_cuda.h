// What belongs to a product on a GPU beside the product: what the library may be asked for, and
// what own kernels do where it has none.
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/kernel/kernel.h"
#include "ops/reduce/reduce_launch_cuda.h"

namespace pipetrain {

struct ProductEpilogue {
  enum class Kind : std::uint8_t { kNone, kRelu, kGelu, kSums } kind = Kind::kNone;
  bool bias = false;
  bool keeps = false;  // of kGelu and kRelu: what goes into the function is a result, too
  int summed = 0;      // of kSums: the operand
  /// Whether cuBLASLt has an epilogue for it: a Relu whose input nobody wants, a Gelu by tanh, sums
  /// over one product's operand.
  bool by_library = false;

  elementwise::Coded function;  // of kRelu and kGelu
  reduce::ReduceWalk sums;      // of kSums
};

/// Error (kInternal) for a node that is none of MatMul, MatMulActivation and MatMulSums.
ProductEpilogue product_epilogue(const KernelRequest& request);

/// Bytes of workspace behind the product's own that finish_product() needs.
std::size_t finish_bytes(const ProductEpilogue& epilogue);
/// The tensor that a product without its epilogue (but with its bias) is written to.
const Tensor& product_place(const ProductEpilogue& epilogue, std::span<const Tensor> out);
/// Adds the bias, the node's third operand, to every row of the product.
void add_bias(const Tensor& product, std::span<const Tensor> in, const CudaQueue& queue);
/// What is left to do then.
void finish_product(const ProductEpilogue& epilogue, std::span<const Tensor> in,
                    std::span<const Tensor> out, std::byte* workspace, const CudaQueue& queue);

}  // namespace pipetrain
