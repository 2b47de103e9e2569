// Softmax on GPUs.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_launch_cuda.h"

namespace pipetrain::softmax {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool floats(const KernelRequest& request, std::size_t x) {
  return is_stored_float(request.inputs[x].dtype) && takes_types(request);
}

template <bool kLog, bool kGradient>
Made make_softmax(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 0)) return nullptr;
  const AxisView view = view_axis(request.node.attributes, request.inputs[0].shape);
  const Lines lines{view.outer, view.extent, view.inner};
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    if constexpr (kGradient) {
      launch_softmax_gradient(lines, kLog, numbers_at(in, 0), numbers_at(in, 1), places_at(out, 0),
                              queue);
    } else {
      launch_softmax(lines, kLog, numbers_at(in, 0), places_at(out, 0), queue);
    }
  });
}

constexpr CudaKernelEntry kKernels[] = {
    {"LogSoftmax", make_softmax<true, false>},
    {"LogSoftmaxGrad", make_softmax<true, true>},
    {"Softmax", make_softmax<false, false>},
    {"SoftmaxGrad", make_softmax<false, true>},
};

}  // namespace
}  // namespace pipetrain::softmax

namespace pipetrain {
std::span<const CudaKernelEntry> softmax_cuda_kernels() { return softmax::kKernels; }
}  // namespace pipetrain
