// Plain loops for the three convolutions. All of them visit the same (output, tap, input) triples;
// they differ in which of the three tensors they add to.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/conv/conv.h"

namespace pipetrain {
namespace {

/// Calls `visit(x_plane, w_index, y_plane, …)` for every pair of a channel plane of x and one of y,
/// tap by tap.
template <class Visit>
void for_each_tap(const ConvGeometry& geometry, Visit visit) {
  const auto axes = three_axes(geometry.window);
  const std::int64_t taps = axes[0].kernel * axes[1].kernel * axes[2].kernel;
  for (std::int64_t n = 0; n < geometry.batch; ++n) {
    for (std::int64_t g = 0; g < geometry.group; ++g) {
      for (std::int64_t m = 0; m < geometry.outputs; ++m) {
        const std::int64_t output = g * geometry.outputs + m;
        for (std::int64_t c = 0; c < geometry.inputs; ++c) {
          for (std::int64_t tap = 0; tap < taps; ++tap) {
            visit(n * geometry.group * geometry.inputs + g * geometry.inputs + c,
                  (output * geometry.inputs + c) * taps + tap,
                  n * geometry.group * geometry.outputs + output, tap);
          }
        }
      }
    }
  }
}

/// Calls `add(x_position, y_position)` for every output position whose tap lies inside the input.
template <class Add>
void for_each_position(const std::array<WindowAxis, 3>& axes, std::int64_t tap, Add add) {
  const auto& [d, h, w] = axes;
  const std::int64_t tap_w = tap % w.kernel * w.dilation;
  const std::int64_t tap_h = tap / w.kernel % h.kernel * h.dilation;
  const std::int64_t tap_d = tap / w.kernel / h.kernel * d.dilation;
  for (std::int64_t i = 0; i < d.output; ++i) {
    const std::int64_t x_d = d.start(i) + tap_d;
    if (x_d < 0 || x_d >= d.input) continue;
    for (std::int64_t j = 0; j < h.output; ++j) {
      const std::int64_t x_h = h.start(j) + tap_h;
      if (x_h < 0 || x_h >= h.input) continue;
      for (std::int64_t k = 0; k < w.output; ++k) {
        const std::int64_t x_w = w.start(k) + tap_w;
        if (x_w < 0 || x_w >= w.input) continue;
        add((x_d * h.input + x_h) * w.input + x_w, (i * h.output + j) * w.output + k);
      }
    }
  }
}

struct PlaneSizes {
  std::int64_t x;
  std::int64_t y;
};

PlaneSizes plane_sizes(const ConvGeometry& geometry) {
  PlaneSizes out{1, 1};
  for (const WindowAxis& axis : geometry.window) {
    out.x *= axis.input;
    out.y *= axis.output;
  }
  return out;
}

template <class T>
void forward(const ConvGeometry& geometry, const T* x, const T* w, const T* b, std::span<T> y) {
  const auto axes = three_axes(geometry.window);
  const PlaneSizes plane = plane_sizes(geometry);
  const std::int64_t channels = geometry.group * geometry.outputs;
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = b ? b[static_cast<std::int64_t>(i) / plane.y % channels] : T{0};
  }
  for_each_tap(geometry, [&](std::int64_t x_plane, std::int64_t w_index, std::int64_t y_plane,
                             std::int64_t tap) {
    const T* from = x + x_plane * plane.x;
    T* to = y.data() + y_plane * plane.y;
    const T weight = w[w_index];
    for_each_position(axes, tap,
                      [&](std::int64_t i, std::int64_t o) { to[o] += weight * from[i]; });
  });
}

template <class T>
void input_gradient(const ConvGeometry& geometry, const T* dy, const T* w, std::span<T> dx) {
  const auto axes = three_axes(geometry.window);
  const PlaneSizes plane = plane_sizes(geometry);
  std::fill(dx.begin(), dx.end(), T{0});
  for_each_tap(geometry, [&](std::int64_t x_plane, std::int64_t w_index, std::int64_t y_plane,
                             std::int64_t tap) {
    T* to = dx.data() + x_plane * plane.x;
    const T* from = dy + y_plane * plane.y;
    const T weight = w[w_index];
    for_each_position(axes, tap,
                      [&](std::int64_t i, std::int64_t o) { to[i] += weight * from[o]; });
  });
}

template <class T>
void weight_gradient(const ConvGeometry& geometry, const T* x, const T* dy, std::span<T> dw,
                     T* db) {
  const auto axes = three_axes(geometry.window);
  const PlaneSizes plane = plane_sizes(geometry);
  std::fill(dw.begin(), dw.end(), T{0});
  for_each_tap(geometry, [&](std::int64_t x_plane, std::int64_t w_index, std::int64_t y_plane,
                             std::int64_t tap) {
    const T* from = x + x_plane * plane.x;
    const T* by = dy + y_plane * plane.y;
    T sum{0};
    for_each_position(axes, tap, [&](std::int64_t i, std::int64_t o) { sum += from[i] * by[o]; });
    dw[static_cast<std::size_t>(w_index)] += sum;
  });
  if (!db) return;
  const std::int64_t channels = geometry.group * geometry.outputs;
  std::fill_n(db, channels, T{0});
  for (std::int64_t i = 0; i < geometry.batch * channels; ++i) {
    for (std::int64_t o = 0; o < plane.y; ++o) db[i % channels] += dy[i * plane.y + o];
  }
}

template <class T>
std::unique_ptr<Kernel> make_forward(const KernelRequest& request) {
  return make_kernel(
      [geometry = conv_geometry(request.node.attributes, request.inputs[0].shape,
                                request.inputs[1].shape)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const T* bias = in.size() > 2 ? in[2].as<T>() : nullptr;
        forward<T>(geometry, in[0].as<T>(), in[1].as<T>(), bias, out[0].span<T>());
      });
}

template <class T>
std::unique_ptr<Kernel> make_input_gradient(const KernelRequest& request) {
  return make_kernel(
      [geometry = conv_geometry(request.node.attributes, request.outputs[0].shape,
                                request.inputs[1].shape)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        input_gradient<T>(geometry, in[0].as<T>(), in[1].as<T>(), out[0].span<T>());
      });
}

template <class T>
std::unique_ptr<Kernel> make_weight_gradient(const KernelRequest& request) {
  return make_kernel(
      [geometry = conv_geometry(request.node.attributes, request.inputs[0].shape,
                                request.outputs[0].shape)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        T* bias = out.size() > 1 ? out[1].as<T>() : nullptr;
        weight_gradient<T>(geometry, in[0].as<T>(), in[1].as<T>(), out[0].span<T>(), bias);
      });
}

/// The maker for the element type of the first input; null for types that are not float32 or
/// float64 and for layouts that are not row-major.
template <MakeKernel make_float, MakeKernel make_double>
std::unique_ptr<Kernel> conv_by_type(const KernelRequest& request) {
  for (const TensorType& type : request.inputs) {
    if (type.layout != Layout::kRowMajor) return nullptr;
  }
  for (const TensorType& type : request.outputs) {
    if (type.layout != Layout::kRowMajor) return nullptr;
  }
  if (request.inputs[0].dtype == DType::kFloat32) return make_float(request);
  if (request.inputs[0].dtype == DType::kFloat64) return make_double(request);
  return nullptr;
}

constexpr KernelEntry kConvReferenceKernels[] = {
    {"Conv", conv_by_type<make_forward<float>, make_forward<double>>},
    {"ConvInputGrad", conv_by_type<make_input_gradient<float>, make_input_gradient<double>>},
    {"ConvWeightGrad", conv_by_type<make_weight_gradient<float>, make_weight_gradient<double>>},
};

}  // namespace

std::span<const KernelEntry> conv_reference_kernels() { return kConvReferenceKernels; }

}  // namespace pipetrain
