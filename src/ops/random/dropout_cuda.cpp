// Dropout on GPUs.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/random/dropout.h"
#include "ops/random/dropout_launch_cuda.h"

namespace pipetrain::dropout {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool floats(const KernelRequest& request, std::size_t x) {
  return is_stored_float(request.inputs[x].dtype) && takes_types(request);
}

Made make_dropout(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 0)) return nullptr;
  const DropoutParameters parameters = dropout_parameters(request.node.attributes);
  return make_kernel([=](Tensors in, Tensors out, const RunContext& context) {
    const DropoutMask mask{dropout_key(context, parameters.node_key), parameters.threshold,
                           static_cast<float>(parameters.scale), context.first_sample,
                           elements_per_sample(in[0].count(), context)};
    launch_dropout(mask, numbers_at(in, 0), places_at(out, 0), in[0].count(), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {
    {"Dropout", make_dropout},
};

}  // namespace
}  // namespace pipetrain::dropout

namespace pipetrain {
std::span<const CudaKernelEntry> dropout_cuda_kernels() { return dropout::kKernels; }
}  // namespace pipetrain
