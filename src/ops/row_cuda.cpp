// Softmax, losses, norms and dropout on GPUs.
#include "ops/dropout.h"
#include "ops/kernels_cuda.h"
#include "ops/layer_norm.h"
#include "ops/loss.h"
#include "ops/row_launch_cuda.h"
#include "ops/softmax.h"
#include "ops/stored_tensor_cuda.h"

namespace pipetrain::row {
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

Entropy entropy_of(const KernelRequest& request) {
  const CrossEntropy loss = cross_entropy_of(request.node.attributes, request.inputs[0].shape);
  return {loss.rows, loss.classes, request.inputs[0].row_stride(), loss.ignore_index,
          static_cast<float>(loss.smoothing)};
}

/// Weights of classes are the CPU's alone, as are rows that 32 bits do not count. Logits and their
/// gradient may have padded rows, both or none.
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
    launch_norm(norm, numbers_at(in, 0), numbers_at(in, 1), kCentred ? numbers_at(in, 2) : Places(),
                places_at(out, 0), kCentred ? places_at(out, 1) : Places(),
                places_at(out, kCentred ? 2 : 1), queue);
  });
}

template <bool kCentred>
Made make_input_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request, 1)) return nullptr;
  const Norm norm = norm_of<kCentred>(request, 1);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_norm_input_gradient(norm, numbers_at(in, 0), numbers_at(in, 1), numbers_at(in, 2),
                               kCentred ? numbers_at(in, 3) : Numbers(),
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
                                    kCentred ? numbers_at(in, 2) : Numbers(),
                                    numbers_at(in, kCentred ? 3 : 2), places_at(out, 0),
                                    kCentred ? places_at(out, 1) : Places(),
                                    reinterpret_cast<float*>(context.workspace), queue);
      },
      2 * static_cast<std::size_t>(norm_pieces(norm) * norm.width) * sizeof(float));
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
    {"AbsoluteError", make_pointwise<Pointwise::kAbsolute>},
    {"AbsoluteErrorGrad", make_pointwise_gradient<Pointwise::kAbsolute>},
    {"BinaryCrossEntropy", make_pointwise<Pointwise::kBinaryCrossEntropy>},
    {"BinaryCrossEntropyGrad", make_pointwise_gradient<Pointwise::kBinaryCrossEntropy>},
    {"Dropout", make_dropout},
    {"LayerNorm", make_norm<true>},
    {"LayerNormInputGrad", make_input_gradient<true>},
    {"LayerNormWeightGrad", make_weight_gradient<true>},
    {"LogSoftmax", make_softmax<true, false>},
    {"LogSoftmaxGrad", make_softmax<true, true>},
    {"RmsNorm", make_norm<false>},
    {"RmsNormInputGrad", make_input_gradient<false>},
    {"RmsNormWeightGrad", make_weight_gradient<false>},
    {"Softmax", make_softmax<false, false>},
    {"SoftmaxCrossEntropy", make_cross_entropy},
    {"SoftmaxCrossEntropyGrad", make_cross_entropy_gradient},
    {"SoftmaxGrad", make_softmax<false, true>},
    {"SquaredError", make_pointwise<Pointwise::kSquared>},
    {"SquaredErrorGrad", make_pointwise_gradient<Pointwise::kSquared>},
};

}  // namespace
}  // namespace pipetrain::row

namespace pipetrain {
std::span<const CudaKernelEntry> row_cuda_kernels() { return row::kKernels; }
}  // namespace pipetrain
