// Plain loops for RmsNorm and its gradients.
#include <cmath>

#include "ops/kernel/element_types.h"
#include "ops/norm/rms_norm.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;

template <class T>
void rms_forward(const LayerNormGeometry& g, Tensors in, Tensors out) {
  const T* scale = data_or_null<T>(in, 1);
  T* inverses = data_or_null<T>(out, 1);
  for (std::int64_t row = 0; row < g.rows; ++row) {
    const T* x = in[0].as<T>() + row * g.width;
    double squares = 0;
    for (std::int64_t i = 0; i < g.width; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(g.width) + g.epsilon);
    if (inverses) inverses[row] = static_cast<T>(inverse);
    if (!out[0]) continue;
    T* y = out[0].as<T>() + row * g.width;
    for (std::int64_t i = 0; i < g.width; ++i) {
      y[i] = static_cast<T>(x[i] * inverse * (scale ? scale[i] : T{1}));
    }
  }
}

// dx = r (g - x r² mean(g x)) with g = dy scale
template <class T>
void rms_input_gradient(const LayerNormGeometry& g, Tensors in, Tensors out) {
  const T* scale = data_or_null<T>(in, 2);
  for (std::int64_t row = 0; row < g.rows; ++row) {
    const T* dy = in[0].as<T>() + row * g.width;
    const T* x = in[1].as<T>() + row * g.width;
    const double inverse = in[3].as<T>()[row];
    double sum = 0;
    for (std::int64_t i = 0; i < g.width; ++i) {
      sum += static_cast<double>(dy[i]) * (scale ? scale[i] : T{1}) * x[i];
    }
    const double factor = sum / static_cast<double>(g.width) * inverse * inverse;
    T* dx = out[0].as<T>() + row * g.width;
    for (std::int64_t i = 0; i < g.width; ++i) {
      const double scaled = static_cast<double>(dy[i]) * (scale ? scale[i] : T{1});
      dx[i] = static_cast<T>(inverse * (scaled - x[i] * factor));
    }
  }
}

template <class T>
void rms_weight_gradient(const LayerNormGeometry& g, Tensors in, Tensors out) {
  std::vector<double> sum(static_cast<std::size_t>(g.width), 0);
  for (std::int64_t row = 0; row < g.rows; ++row) {
    const double inverse = in[2].as<T>()[row];
    for (std::int64_t i = 0; i < g.width; ++i) {
      const std::int64_t at = row * g.width + i;
      sum[static_cast<std::size_t>(i)] +=
          static_cast<double>(in[0].as<T>()[at]) * in[1].as<T>()[at] * inverse;
    }
  }
  std::copy(sum.begin(), sum.end(), out[0].as<T>());
}

/// A kernel of x at input `x`.
template <class Run>
std::unique_ptr<Kernel> make(const KernelRequest& request, std::size_t x, Run run) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[x].dtype, [&]<class T>() {
    return make_kernel([g = layer_norm_geometry(request.node.attributes, request.inputs[x].shape),
                        run](Tensors in, Tensors out, const RunContext&) {
      run.template operator()<T>(g, in, out);
    });
  });
}

std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  return make(request, 0, []<class T>(const LayerNormGeometry& g, Tensors in, Tensors out) {
    rms_forward<T>(g, in, out);
  });
}
std::unique_ptr<Kernel> make_input_gradient(const KernelRequest& request) {
  return make(request, 1, []<class T>(const LayerNormGeometry& g, Tensors in, Tensors out) {
    rms_input_gradient<T>(g, in, out);
  });
}
std::unique_ptr<Kernel> make_weight_gradient(const KernelRequest& request) {
  return make(request, 1, []<class T>(const LayerNormGeometry& g, Tensors in, Tensors out) {
    rms_weight_gradient<T>(g, in, out);
  });
}

constexpr KernelEntry kRmsNormReferenceKernels[] = {
    {"RmsNorm", make_forward},
    {"RmsNormInputGrad", make_input_gradient},
    {"RmsNormWeightGrad", make_weight_gradient},
};

}  // namespace

std::span<const KernelEntry> rms_norm_reference_kernels() { return kRmsNormReferenceKernels; }

}  // namespace pipetrain
