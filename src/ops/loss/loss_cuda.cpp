// Losses on GPUs.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/loss/loss.h"
#include "ops/loss/loss_launch_cuda.h"

namespace pipetrain::loss {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool floats(const KernelRequest& request, std::size_t x) {
  return is_stored_float(request.inputs[x].dtype) && takes_types(request);
}

Entropy entropy_of(const KernelRequest& request) {
  const CrossEntropy loss = cross_entropy_of(request.node.attributes, request.inputs[0].shape);
  return {loss.rows, loss.classes, request.inputs[0].row_stride(), loss.ignore_index,
          static_cast<float>(loss.smoothing)};
}

/// Class weights, and more rows than fit 32 bits, run on the CPU. Logits and their gradient both
/// have padded rows, or neither.
bool takes_entropy(KernelRequest request) {
  TensorType& x = request.inputs[0];
  TensorType& y = request.outputs[0];
  if (y.shape == x.shape && y.layout != x.layout) return false;
  if (x.layout == Layout::kPaddedRows) x.layout = y.layout = Layout::kRowMajor;
  return floats(request, 0) && request.inputs[0].shape[1] < (std::int64_t{1} << 30) &&
         request.node.attributes.reals("class_weights", {}).empty();
}

Made make_cross_entropy(const KernelRequest& request, const CudaQueue& queue) {
  if (!takes_entropy(request)) return nullptr;
  const Entropy entropy = entropy_of(request);
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        launch_cross_entropy(entropy, numbers_at(in, 0), in[1].as<std::int64_t>(),
                             places_at(out, 0), places_at(out, 1), places_at(out, 2),
                             reinterpret_cast<float*>(context.workspace), queue);
      },
      2 * static_cast<std::size_t>(entropy.rows) * sizeof(float));
}

Made make_cross_entropy_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!takes_entropy(request)) return nullptr;
  const Entropy entropy = entropy_of(request);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_cross_entropy_gradient(entropy, numbers_at(in, 0), in[1].as<std::int64_t>(),
                                  numbers_at(in, 2), numbers_at(in, 3), places_at(out, 0), queue);
  });
}

template <Pointwise kKind>
Made make_pointwise(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 0)) return nullptr;
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        launch_pointwise_loss(kKind, numbers_at(in, 0), numbers_at(in, 1), in[0].count(),
                              places_at(out, 0), places_at(out, 1),
                              reinterpret_cast<float*>(context.workspace), queue);
      },
      2 * kPointwiseParts * sizeof(float));
}

template <Pointwise kKind>
Made make_pointwise_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 0)) return nullptr;
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_pointwise_gradient(kKind, numbers_at(in, 0), numbers_at(in, 1), in[0].count(),
                              numbers_at(in, 2), places_at(out, 0), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {
    {"AbsoluteError", make_pointwise<Pointwise::kAbsolute>},
    {"AbsoluteErrorGrad", make_pointwise_gradient<Pointwise::kAbsolute>},
    {"BinaryCrossEntropy", make_pointwise<Pointwise::kBinaryCrossEntropy>},
    {"BinaryCrossEntropyGrad", make_pointwise_gradient<Pointwise::kBinaryCrossEntropy>},
    {"SoftmaxCrossEntropy", make_cross_entropy},
    {"SoftmaxCrossEntropyGrad", make_cross_entropy_gradient},
    {"SquaredError", make_pointwise<Pointwise::kSquared>},
    {"SquaredErrorGrad", make_pointwise_gradient<Pointwise::kSquared>},
};

}  // namespace
}  // namespace pipetrain::loss

namespace pipetrain {
std::span<const CudaKernelEntry> loss_cuda_kernels() { return loss::kKernels; }
}  // namespace pipetrain
