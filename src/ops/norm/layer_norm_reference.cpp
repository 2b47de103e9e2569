// Plain loops for LayerNorm and its gradients.
#include <algorithm>
#include <cmath>

#include "ops/kernel/element_types.h"
#include "ops/norm/layer_norm.h"

namespace pipetrain {
namespace {

template <class T>
void forward(const LayerNormGeometry& geometry, std::span<const Tensor> in,
             std::span<const Tensor> out) {
  const T* scale = data_or_null<T>(in, 1);
  const T* bias = data_or_null<T>(in, 2);
  T* means = data_or_null<T>(out, 1);
  T* inverses = data_or_null<T>(out, 2);
  const auto width = static_cast<double>(geometry.width);
  for (std::int64_t row = 0; row < geometry.rows; ++row) {
    const T* x = in[0].as<T>() + row * geometry.width;
    double mean = 0;
    for (std::int64_t i = 0; i < geometry.width; ++i) mean += x[i];
    mean /= width;
    double variance = 0;
    for (std::int64_t i = 0; i < geometry.width; ++i) variance += (x[i] - mean) * (x[i] - mean);
    const double inverse = 1.0 / std::sqrt(variance / width + geometry.epsilon);
    if (means) means[row] = static_cast<T>(mean);
    if (inverses) inverses[row] = static_cast<T>(inverse);
    if (!out[0]) continue;
    T* y = out[0].as<T>() + row * geometry.width;
    for (std::int64_t i = 0; i < geometry.width; ++i) {
      const double normal = (x[i] - mean) * inverse;
      y[i] = static_cast<T>(normal * (scale ? scale[i] : T{1}) + (bias ? bias[i] : T{0}));
    }
  }
}

/// With n = (x - mean) inverse_std and g = dy scale: dx = inverse_std (g - mean(g) - n mean(g n)).
template <class T>
void input_gradient(const LayerNormGeometry& geometry, std::span<const Tensor> in,
                    std::span<const Tensor> out) {
  const T* scale = in[2].as<T>();
  const auto width = static_cast<double>(geometry.width);
  for (std::int64_t row = 0; row < geometry.rows; ++row) {
    const T* dy = in[0].as<T>() + row * geometry.width;
    const T* x = in[1].as<T>() + row * geometry.width;
    T* dx = out[0].as<T>() + row * geometry.width;
    const double mean = in[3].as<T>()[row];
    const double inverse = in[4].as<T>()[row];
    double sum = 0;
    double weighted = 0;
    for (std::int64_t i = 0; i < geometry.width; ++i) {
      const double g = static_cast<double>(dy[i]) * (scale ? scale[i] : T{1});
      sum += g;
      weighted += g * (x[i] - mean) * inverse;
    }
    for (std::int64_t i = 0; i < geometry.width; ++i) {
      const double g = static_cast<double>(dy[i]) * (scale ? scale[i] : T{1});
      const double normal = (x[i] - mean) * inverse;
      dx[i] = static_cast<T>(inverse * (g - sum / width - normal * weighted / width));
    }
  }
}

template <class T>
void weight_gradient(const LayerNormGeometry& geometry, std::span<const Tensor> in,
                     std::span<const Tensor> out) {
  T* dscale = out[0].as<T>();
  T* dbias = data_or_null<T>(out, 1);
  for (std::int64_t i = 0; i < geometry.width; ++i) {
    double scale_sum = 0;
    double bias_sum = 0;
    for (std::int64_t row = 0; row < geometry.rows; ++row) {
      const double dy = in[0].as<T>()[row * geometry.width + i];
      const double x = in[1].as<T>()[row * geometry.width + i];
      scale_sum += dy * (x - in[2].as<T>()[row]) * in[3].as<T>()[row];
      bias_sum += dy;
    }
    if (dscale) dscale[i] = static_cast<T>(scale_sum);
    if (dbias) dbias[i] = static_cast<T>(bias_sum);
  }
}

using Geometry = LayerNormGeometry;
using Run = void (*)(const Geometry&, std::span<const Tensor>, std::span<const Tensor>);

template <Run run_float, Run run_double, std::size_t x_index>
std::unique_ptr<Kernel> make(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  const TensorType& x = request.inputs[x_index];
  return for_element_type<float, double>(x.dtype, [&]<class T>() {
    return make_kernel(
        [geometry = layer_norm_geometry(request.node.attributes, x.shape)](
            std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          std::is_same_v<T, float> ? run_float(geometry, in, out) : run_double(geometry, in, out);
        });
  });
}

constexpr KernelEntry kLayerNormReferenceKernels[] = {
    {"LayerNorm", make<forward<float>, forward<double>, 0>},
    {"LayerNormInputGrad", make<input_gradient<float>, input_gradient<double>, 1>},
    {"LayerNormWeightGrad", make<weight_gradient<float>, weight_gradient<double>, 1>},
};

}  // namespace

std::span<const KernelEntry> layer_norm_reference_kernels() { return kLayerNormReferenceKernels; }

}  // namespace pipetrain
