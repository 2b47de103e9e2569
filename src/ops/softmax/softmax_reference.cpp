// Plain loops for Softmax, LogSoftmax and their gradients.
#include <algorithm>
#include <cmath>

#include "ops/kernel/element_types.h"
#include "ops/softmax/softmax.h"

namespace pipetrain {
namespace {

/// Calls `line(offset, stride)` for every line of elements along the axis.
template <class Line>
void for_each_line(const AxisView& view, Line line) {
  if (view.extent == 0) return;
  for (std::int64_t outer = 0; outer < view.outer; ++outer) {
    for (std::int64_t inner = 0; inner < view.inner; ++inner) {
      line(outer * view.extent * view.inner + inner, view.inner);
    }
  }
}

template <class T, bool kLog>
void forward(const AxisView& view, const T* x, T* y) {
  for_each_line(view, [&](std::int64_t offset, std::int64_t stride) {
    T maximum = x[offset];
    for (std::int64_t e = 1; e < view.extent; ++e) {
      maximum = std::max(maximum, x[offset + e * stride]);
    }
    double sum = 0;
    for (std::int64_t e = 0; e < view.extent; ++e) {
      sum += std::exp(static_cast<double>(x[offset + e * stride] - maximum));
    }
    for (std::int64_t e = 0; e < view.extent; ++e) {
      const auto shifted = static_cast<double>(x[offset + e * stride] - maximum);
      y[offset + e * stride] =
          static_cast<T>(kLog ? shifted - std::log(sum) : std::exp(shifted) / sum);
    }
  });
}

/// Softmax: dx = y (dy - Σ dy y). LogSoftmax: dx = dy - e^y Σ dy.
template <class T, bool kLog>
void gradient(const AxisView& view, const T* dy, const T* y, T* dx) {
  for_each_line(view, [&](std::int64_t offset, std::int64_t stride) {
    double sum = 0;
    for (std::int64_t e = 0; e < view.extent; ++e) {
      const std::int64_t at = offset + e * stride;
      sum += kLog ? static_cast<double>(dy[at]) : static_cast<double>(dy[at]) * y[at];
    }
    for (std::int64_t e = 0; e < view.extent; ++e) {
      const std::int64_t at = offset + e * stride;
      dx[at] = static_cast<T>(kLog ? dy[at] - std::exp(static_cast<double>(y[at])) * sum
                                   : y[at] * (dy[at] - sum));
    }
  });
}

template <bool kLog>
std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [view = view_axis(request.node.attributes, request.inputs[0].shape)](
            std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          forward<T, kLog>(view, in[0].as<T>(), out[0].as<T>());
        });
  });
}

template <bool kLog>
std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [view = view_axis(request.node.attributes, request.inputs[0].shape)](
            std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          gradient<T, kLog>(view, in[0].as<T>(), in[1].as<T>(), out[0].as<T>());
        });
  });
}

constexpr KernelEntry kSoftmaxReferenceKernels[] = {
    {"LogSoftmax", make_forward<true>},
    {"LogSoftmaxGrad", make_gradient<true>},
    {"Softmax", make_forward<false>},
    {"SoftmaxGrad", make_gradient<false>},
};

}  // namespace

std::span<const KernelEntry> softmax_reference_kernels() { return kSoftmaxReferenceKernels; }

}  // namespace pipetrain
