// Plain loops for batch normalization, channel by channel and in two passes.
#include <cmath>

#include "ops/kernel/element_types.h"
#include "ops/norm/batch_norm_behind_reference.h"

namespace pipetrain {
namespace {

/// Calls `visit(element)` for every element of a channel.
template <class Visit>
void for_each_element(const BatchNormShape& shape, std::int64_t channel, Visit visit) {
  for (std::int64_t n = 0; n < shape.images; ++n) {
    const std::int64_t begin = (n * shape.channels + channel) * shape.positions;
    for (std::int64_t i = begin; i < begin + shape.positions; ++i) visit(i);
  }
}

template <class T>
T inverse_deviation(T variance, T epsilon) {
  return T{1} / std::sqrt(variance + epsilon);
}

template <class T>
void set(const std::span<const Tensor> out, std::size_t index, std::int64_t channel, T value) {
  if (index < out.size() && out[index]) out[index].as<T>()[channel] = value;
}

template <class T>
std::unique_ptr<Kernel> make_training(const KernelRequest& request) {
  const BatchNormShape shape(request.inputs[0].shape);
  const auto epsilon = static_cast<T>(batch_norm_epsilon(request.node.attributes));
  const BatchNormLimits limits(request.node.attributes);
  const behind::Activation<T> activation(request.node.attributes);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const T* x = in[0].as<T>();
        const auto population = static_cast<T>(shape.population());
        for (std::int64_t c = 0; c < shape.channels; ++c) {
          T mean{0};
          for_each_element(shape, c, [&](std::int64_t i) { mean += x[i]; });
          mean /= population;
          T variance{0};
          for_each_element(shape, c,
                           [&](std::int64_t i) { variance += (x[i] - mean) * (x[i] - mean); });
          variance /= population;
          const T factor = inverse_deviation(variance, epsilon) * in[1].as<T>()[c];
          const T bias = in[2].as<T>()[c];
          const T* residual = data_or_null<T>(in, 3);
          for_each_element(shape, c, [&](std::int64_t i) {
            const T y = (x[i] - mean) * factor + bias;
            out[0].as<T>()[i] = activation.function
                                    ? activation.function(y)
                                    : behind::clip(residual ? y + residual[i] : y, limits);
          });
          set<T>(out, 1, c, mean);
          set<T>(out, 2, c, variance);
        }
      });
}

template <class T>
std::unique_ptr<Kernel> make_inference(const KernelRequest& request) {
  const BatchNormShape shape(request.inputs[0].shape);
  const auto epsilon = static_cast<T>(batch_norm_epsilon(request.node.attributes));
  const BatchNormLimits limits(request.node.attributes);
  return make_kernel([shape, epsilon, limits](std::span<const Tensor> in,
                                              std::span<const Tensor> out, const RunContext&) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      const T factor = inverse_deviation(in[4].as<T>()[c], epsilon) * in[1].as<T>()[c];
      const T mean = in[3].as<T>()[c];
      const T bias = in[2].as<T>()[c];
      for_each_element(shape, c, [&](std::int64_t i) {
        out[0].as<T>()[i] = behind::clip((in[0].as<T>()[i] - mean) * factor + bias, limits);
      });
    }
  });
}

/// The gradient; `batch`: mean and variance depend on x.
template <class T, bool batch>
std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  const BatchNormShape shape(request.inputs[1].shape);
  const auto epsilon = static_cast<T>(batch_norm_epsilon(request.node.attributes));
  const BatchNormLimits limits(request.node.attributes);
  const behind::Activation<T> activation(request.node.attributes);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const T* dy = in[0].as<T>();
        const T* x = in[1].as<T>();
        const auto population = static_cast<T>(shape.population());
        for (std::int64_t c = 0; c < shape.channels; ++c) {
          const T mean = in[3].as<T>()[c];
          const T inverse = inverse_deviation(in[4].as<T>()[c], epsilon);
          const T factor = inverse * in[2].as<T>()[c];
          const auto gradient = [&](std::int64_t i) {
            if (!limits.any() && !activation.gradient) return dy[i];
            return behind::gradient(limits, activation, dy[i],
                                    (x[i] - mean) * factor + in[5].as<T>()[c]);
          };
          T dbias{0};
          T dscale{0};
          for_each_element(shape, c, [&](std::int64_t i) {
            dbias += gradient(i);
            dscale += gradient(i) * (x[i] - mean) * inverse;
          });
          set<T>(out, 1, c, dscale);
          set<T>(out, 2, c, dbias);
          if (!out[0]) continue;
          for_each_element(shape, c, [&](std::int64_t i) {
            const T normalized = (x[i] - mean) * inverse;
            const T shift = batch ? (dbias + normalized * dscale) / population : T{0};
            out[0].as<T>()[i] = factor * (gradient(i) - shift);
          });
        }
      });
}

template <MakeKernel make_float, MakeKernel make_double>
std::unique_ptr<Kernel> by_type(const KernelRequest& request) {
  for (const TensorType& type : request.inputs) {
    if (type.layout != Layout::kRowMajor) return nullptr;
  }
  if (request.outputs[0].layout != Layout::kRowMajor) return nullptr;
  if (request.inputs[0].dtype == DType::kFloat32) return make_float(request);
  if (request.inputs[0].dtype == DType::kFloat64) return make_double(request);
  return nullptr;
}

constexpr KernelEntry kBatchNormReferenceKernels[] = {
    {"BatchNorm", by_type<make_training<float>, make_training<double>>},
    {"BatchNormGrad", by_type<make_gradient<float, true>, make_gradient<double, true>>},
    {"BatchNormInference", by_type<make_inference<float>, make_inference<double>>},
    {"BatchNormInferenceGrad", by_type<make_gradient<float, false>, make_gradient<double, false>>},
};

}  // namespace

std::span<const KernelEntry> batch_norm_reference_kernels() { return kBatchNormReferenceKernels; }

}  // namespace pipetrain
