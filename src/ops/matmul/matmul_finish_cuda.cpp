// The epilogue of a product by hand-written kernels, where the library has no kernel with it.
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/matmul/matmul_epilogue_cuda.h"

namespace pipetrain {

std::size_t finish_bytes(const ProductEpilogue& epilogue) {
  if (epilogue.kind != ProductEpilogue::Kind::kSums) return 0;
  return static_cast<std::size_t>(reduce::workspace_of(epilogue.sums)) * sizeof(float);
}

const Tensor& product_place(const ProductEpilogue& epilogue, std::span<const Tensor> out) {
  const bool kept =
      epilogue.keeps && epilogue.kind != ProductEpilogue::Kind::kSums && out.size() > 1 && out[1];
  return out[kept ? 1 : 0];
}

void add_bias(const Tensor& product, std::span<const Tensor> in, const CudaQueue& queue) {
  using namespace elementwise;
  const std::int64_t columns = in[2].count();
  const Strided rows{2, {product.count() / columns, columns}, {{columns, 1}, {0, 1}}};
  launch_arithmetic(encode(Add<float>(), ArithmeticFunctions()), rows, numbers_at({&product, 1}, 0),
                    numbers_at(in, 2), places_at({&product, 1}, 0), product.count(), queue);
}

void finish_product(const ProductEpilogue& epilogue, std::span<const Tensor> in,
                    std::span<const Tensor> out, std::byte* workspace, const CudaQueue& queue) {
  if (epilogue.kind == ProductEpilogue::Kind::kSums) {
    if (out.size() > 1 && out[1])
      reduce::launch_reduce(reduce::Reduction::kSum, epilogue.sums,
                            numbers_at(in, static_cast<std::size_t>(epilogue.summed)),
                            places_at(out, 1), reinterpret_cast<float*>(workspace), queue);
  } else if (epilogue.kind != ProductEpilogue::Kind::kNone) {
    const Tensor& from = product_place(epilogue, out);
    elementwise::launch_unary(epilogue.function, numbers_at({&from, 1}, 0), places_at(out, 0),
                              out[0].count(), queue);
  }
}

}  // namespace pipetrain
