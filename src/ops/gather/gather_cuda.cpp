// Gather on GPUs.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/gather/gather.h"
#include "ops/gather/gather_launch_cuda.h"
#include "ops/movement/movement_elements_cuda.h"

namespace pipetrain::gather {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

using movement::Elements;
using movement::elements_of;

/// Gather as (outer, extent, slice) with one list of indices.
GatherShape gather_shape(const KernelRequest& request, const Shape& data) {
  const SliceGather gather =
      slice_gather("Gather", request.node.attributes, data, request.inputs[1].shape);
  return {gather.outer, gather.rows(), gather.slice, gather.count,
          request.inputs[1].dtype == DType::kInt64};
}

Made make_gather(const KernelRequest& request, const CudaQueue& queue) {
  const auto size = static_cast<int>(size_of(request.outputs[0].dtype));
  const Elements elements = elements_of(request, 1);
  if (elements == Elements::kUnknown) return nullptr;
  const GatherShape shape = gather_shape(request, request.inputs[0].shape);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    if (elements == Elements::kKept) {
      launch_gather(shape, in[0].data, in[1].data, out[0].data, size, queue);
    } else {
      launch_gather(shape, numbers_at(in, 0), in[1].data, places_at(out, 0), queue);
    }
  });
}

Made make_gather_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!takes_types(request) || !is_stored_float(request.outputs[0].dtype)) return nullptr;
  const GatherShape shape = gather_shape(request, request.outputs[0].shape);
  if (!sorts_indices(shape)) return nullptr;
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        launch_gather_gradient(shape, numbers_at(in, 0), in[1].data, places_at(out, 0),
                               context.workspace, queue);
      },
      static_cast<std::size_t>(gather_gradient_workspace(shape)));
}

constexpr CudaKernelEntry kKernels[] = {
    {"Gather", make_gather},
    {"GatherGrad", make_gather_gradient},
};

}  // namespace
}  // namespace pipetrain::gather

namespace pipetrain {
std::span<const CudaKernelEntry> gather_cuda_kernels() { return gather::kKernels; }
}  // namespace pipetrain
