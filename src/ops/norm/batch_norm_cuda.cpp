// Batch normalization on GPUs.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/norm/batch_norm.h"
#include "ops/norm/batch_norm_launch_cuda.h"

namespace pipetrain::batch_norm {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool floats(const KernelRequest& request) {
  return is_stored_float(request.inputs[0].dtype) &&
         takes_types(request, feature_map_layout(request));
}

Channels channels_of(const KernelRequest& request, const Shape& x) {
  const BatchNormShape shape(x);
  const BatchNormLimits limits(request.node.attributes);
  return {shape.images,
          shape.channels,
          shape.positions,
          static_cast<float>(batch_norm_epsilon(request.node.attributes)),
          static_cast<float>(limits.low),
          static_cast<float>(limits.high),
          static_cast<float>(limits.passes_from),
          limits.any(),
          feature_map_layout(request) == Layout::kChannelsLast};
}

float* floats_at(const RunContext& context) { return reinterpret_cast<float*>(context.workspace); }
std::size_t workspace_bytes(const Channels& shape) {
  return static_cast<std::size_t>(workspace_floats(shape)) * sizeof(float);
}

template <bool kTraining>
Made make_batch_norm(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Channels shape = channels_of(request, request.inputs[0].shape);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        if constexpr (kTraining) {
          launch_batch_norm(shape, numbers_at(in, 0), numbers_at(in, 1), numbers_at(in, 2),
                            numbers_at(in, 3), places_at(out, 1), places_at(out, 2),
                            places_at(out, 0), floats_at(context), queue);
        } else {
          launch_batch_norm_inference(shape, numbers_at(in, 0), numbers_at(in, 1),
                                      numbers_at(in, 2), numbers_at(in, 3), numbers_at(in, 4),
                                      places_at(out, 0), floats_at(context), queue);
        }
      },
      workspace_bytes(shape));
}

template <bool kTraining>
Made make_batch_norm_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Channels shape = channels_of(request, request.inputs[1].shape);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        launch_batch_norm_gradient(shape, kTraining, numbers_at(in, 0), numbers_at(in, 1),
                                   numbers_at(in, 2), numbers_at(in, 3), numbers_at(in, 4),
                                   numbers_at(in, 5), places_at(out, 0), places_at(out, 1),
                                   places_at(out, 2), floats_at(context), queue);
      },
      workspace_bytes(shape));
}

constexpr CudaKernelEntry kKernels[] = {
    {"BatchNorm", make_batch_norm<true>},
    {"BatchNormGrad", make_batch_norm_gradient<true>},
    {"BatchNormInference", make_batch_norm<false>},
    {"BatchNormInferenceGrad", make_batch_norm_gradient<false>},
};

}  // namespace
}  // namespace pipetrain::batch_norm

namespace pipetrain {
std::span<const CudaKernelEntry> batch_norm_cuda_kernels() { return batch_norm::kKernels; }
}  // namespace pipetrain
