// Cumulative sums and products on GPUs.
#include "graph/op.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/kernel/element_types.h"
#include "ops/reduce/cumulative.h"
#include "ops/reduce/cumulative_launch_cuda.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;

template <class Number>
std::unique_ptr<Kernel> make_of(const CumulativeAxis& axis, bool product, const CudaQueue& queue) {
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    if (out[0].count() > 0)
      reduce::launch_cumulative(axis, product, in[0].as<Number>(), out[0].as<Number>(), queue);
  });
}

std::unique_ptr<Kernel> make(const KernelRequest& request, const CudaQueue& queue) {
  if (!is_row_major(request)) return nullptr;
  const CumulativeAxis axis = cumulative_axis(request);
  const bool product = request.node.op->name == "CumProd";
  const DType type = request.inputs[0].dtype;
  if (type == DType::kInt32) return make_of<std::int32_t>(axis, product, queue);
  if (type == DType::kInt64) return make_of<std::int64_t>(axis, product, queue);
  if (!is_stored_float(type)) return nullptr;
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    if (out[0].count() > 0)
      reduce::launch_cumulative(axis, product, numbers_at(in, 0), places_at(out, 0), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {{"CumProd", make}, {"CumSum", make}};

}  // namespace

std::span<const CudaKernelEntry> cumulative_cuda_kernels() { return kKernels; }

}  // namespace pipetrain
