// Layer and root-mean-square normalization on GPUs.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/norm/layer_norm.h"
#include "ops/norm/layer_norm_launch_cuda.h"

namespace pipetrain::layer_norm {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool floats(const KernelRequest& request, std::size_t x) {
  return is_stored_float(request.inputs[x].dtype) && takes_types(request);
}

template <bool kCentred>
Norm norm_of(const KernelRequest& request, std::size_t x) {
  const LayerNormGeometry geometry =
      layer_norm_geometry(request.node.attributes, request.inputs[x].shape);
  return {geometry.rows, geometry.width, static_cast<float>(geometry.epsilon), kCentred};
}

template <bool kCentred>
Made make_norm(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 0)) return nullptr;
  const Norm norm = norm_of<kCentred>(request, 0);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_norm(norm, numbers_at(in, 0), numbers_at(in, 1),
                kCentred ? numbers_at(in, 2) : FloatView(), places_at(out, 0),
                kCentred ? places_at(out, 1) : FloatView(), places_at(out, kCentred ? 2 : 1),
                queue);
  });
}

template <bool kCentred>
Made make_input_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 1)) return nullptr;
  const Norm norm = norm_of<kCentred>(request, 1);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_norm_input_gradient(norm, numbers_at(in, 0), numbers_at(in, 1), numbers_at(in, 2),
                               kCentred ? numbers_at(in, 3) : ConstFloatView(),
                               numbers_at(in, kCentred ? 4 : 3), places_at(out, 0), queue);
  });
}

template <bool kCentred>
Made make_weight_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 1)) return nullptr;
  const Norm norm = norm_of<kCentred>(request, 1);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        launch_norm_weight_gradient(norm, numbers_at(in, 0), numbers_at(in, 1),
                                    kCentred ? numbers_at(in, 2) : ConstFloatView(),
                                    numbers_at(in, kCentred ? 3 : 2), places_at(out, 0),
                                    kCentred ? places_at(out, 1) : FloatView(),
                                    reinterpret_cast<float*>(context.workspace), queue);
      },
      2 * static_cast<std::size_t>(norm_chunks(norm) * norm.width) * sizeof(float));
}

constexpr CudaKernelEntry kKernels[] = {
    {"LayerNorm", make_norm<true>},
    {"LayerNormInputGrad", make_input_gradient<true>},
    {"LayerNormWeightGrad", make_weight_gradient<true>},
    {"RmsNorm", make_norm<false>},
    {"RmsNormInputGrad", make_input_gradient<false>},
    {"RmsNormWeightGrad", make_weight_gradient<false>},
};

}  // namespace
}  // namespace pipetrain::layer_norm

namespace pipetrain {
std::span<const CudaKernelEntry> layer_norm_cuda_kernels() { return layer_norm::kKernels; }
}  // namespace pipetrain
