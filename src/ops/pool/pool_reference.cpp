// Plain loops for pooling: window by window, tap by tap.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/pool/pool.h"

namespace pipetrain {
namespace {

/// Calls `visit(output position, input position)` for all taps inside the input, in scan order of
/// the taps, for every window of one plane in scan order; `begin(output position)` comes before the
/// taps of a window.
template <class Begin, class Visit>
void for_each_window(const Window& window, Begin begin, Visit visit) {
  const auto [d, h, w] = three_axes(window);
  std::int64_t o = 0;
  for (std::int64_t i = 0; i < d.output; ++i) {
    for (std::int64_t j = 0; j < h.output; ++j) {
      for (std::int64_t k = 0; k < w.output; ++k, ++o) {
        begin(o);
        for (std::int64_t a = d.first_tap(i); a < d.last_tap(i); ++a) {
          for (std::int64_t b = h.first_tap(j); b < h.last_tap(j); ++b) {
            for (std::int64_t c = w.first_tap(k); c < w.last_tap(k); ++c) {
              const std::int64_t row =
                  (d.start(i) + a * d.dilation) * h.input + h.start(j) + b * h.dilation;
              visit(o, row * w.input + w.start(k) + c * w.dilation);
            }
          }
        }
      }
    }
  }
}

/// Number of planes, and their sizes before and after pooling.
struct Planes {
  Window window;
  std::int64_t count;
  std::int64_t x;
  std::int64_t y;
};

Planes planes_of(const Attributes& attributes, const Shape& x, const Shape& y) {
  return {pool_window(attributes, x), x[0] * x[1], x.count(2, x.rank()), y.count(2, y.rank())};
}

/// 1 / (positions averaged over), for every window of a plane.
template <class T>
std::vector<T> weights(const Attributes& attributes, const Window& window) {
  std::vector<T> out{1};
  for (std::size_t axis = 0; axis < window.size(); ++axis) {
    std::vector<T> next;
    for (const T outer : out) {
      for (const std::int64_t count : averaged_positions(attributes, window, axis)) {
        next.push_back(outer / static_cast<T>(count));
      }
    }
    out = std::move(next);
  }
  return out;
}

template <class T>
bool exceeds(T value, T best) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) return true;
  }
  return value > best;
}

template <class T>
std::unique_ptr<Kernel> make_max(const KernelRequest& request) {
  const Planes planes =
      planes_of(request.node.attributes, request.inputs[0].shape, request.outputs[0].shape);
  return make_kernel(
      [planes](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        for (std::int64_t plane = 0; plane < planes.count; ++plane) {
          const T* x = in[0].as<T>() + plane * planes.x;
          T* y = out[0].as<T>() + plane * planes.y;
          std::int32_t* index =
              out.size() > 1 && out[1] ? out[1].as<std::int32_t>() + plane * planes.y : nullptr;
          std::int64_t best = -1;
          for_each_window(
              planes.window,
              [&](std::int64_t o) {
                best = -1;
                y[o] = std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity()
                                                   : std::numeric_limits<T>::lowest();
                if (index) index[o] = -1;
              },
              [&](std::int64_t o, std::int64_t i) {
                if (best >= 0 && !exceeds(x[i], y[o])) return;
                best = i;
                y[o] = x[i];
                if (index) index[o] = static_cast<std::int32_t>(i);
              });
        }
      });
}

template <class T>
std::unique_ptr<Kernel> make_max_gradient(const KernelRequest& request) {
  const Planes planes =
      planes_of(request.node.attributes, request.outputs[0].shape, request.inputs[0].shape);
  return make_kernel(
      [planes](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        std::fill(out[0].span<T>().begin(), out[0].span<T>().end(), T{0});
        for (std::int64_t o = 0; o < planes.count * planes.y; ++o) {
          const std::int32_t index = in[1].as<std::int32_t>()[o];
          if (index >= 0) out[0].as<T>()[o / planes.y * planes.x + index] += in[0].as<T>()[o];
        }
      });
}

template <class T>
std::unique_ptr<Kernel> make_average(const KernelRequest& request) {
  const Planes planes =
      planes_of(request.node.attributes, request.inputs[0].shape, request.outputs[0].shape);
  const std::vector<T> weight = weights<T>(request.node.attributes, planes.window);
  return make_kernel(
      [planes, weight](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        for (std::int64_t plane = 0; plane < planes.count; ++plane) {
          const T* x = in[0].as<T>() + plane * planes.x;
          T* y = out[0].as<T>() + plane * planes.y;
          for_each_window(
              planes.window, [&](std::int64_t o) { y[o] = 0; },
              [&](std::int64_t o, std::int64_t i) { y[o] += x[i]; });
          for (std::int64_t o = 0; o < planes.y; ++o) y[o] *= weight[static_cast<std::size_t>(o)];
        }
      });
}

template <class T>
std::unique_ptr<Kernel> make_average_gradient(const KernelRequest& request) {
  const Planes planes =
      planes_of(request.node.attributes, request.outputs[0].shape, request.inputs[0].shape);
  const std::vector<T> weight = weights<T>(request.node.attributes, planes.window);
  return make_kernel(
      [planes, weight](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        std::fill(out[0].span<T>().begin(), out[0].span<T>().end(), T{0});
        for (std::int64_t plane = 0; plane < planes.count; ++plane) {
          const T* dy = in[0].as<T>() + plane * planes.y;
          T* dx = out[0].as<T>() + plane * planes.x;
          T share{0};
          for_each_window(
              planes.window,
              [&](std::int64_t o) { share = dy[o] * weight[static_cast<std::size_t>(o)]; },
              [&](std::int64_t, std::int64_t i) { dx[i] += share; });
        }
      });
}

bool row_major(const KernelRequest& request) {
  return request.inputs[0].layout == Layout::kRowMajor &&
         request.outputs[0].layout == Layout::kRowMajor;
}

std::unique_ptr<Kernel> make_any_max(const KernelRequest& request) {
  if (!row_major(request)) return nullptr;
  switch (request.inputs[0].dtype) {
    case DType::kFloat32:
      return make_max<float>(request);
    case DType::kFloat64:
      return make_max<double>(request);
    case DType::kInt8:
      return make_max<std::int8_t>(request);
    case DType::kUint8:
      return make_max<std::uint8_t>(request);
    default:
      return nullptr;
  }
}

template <MakeKernel make_float, MakeKernel make_double>
std::unique_ptr<Kernel> pool_by_type(const KernelRequest& request) {
  if (!row_major(request)) return nullptr;
  if (request.inputs[0].dtype == DType::kFloat32) return make_float(request);
  if (request.inputs[0].dtype == DType::kFloat64) return make_double(request);
  return nullptr;
}

constexpr KernelEntry kPoolReferenceKernels[] = {
    {"MaxPool", make_any_max},
    {"MaxPoolGrad", pool_by_type<make_max_gradient<float>, make_max_gradient<double>>},
    {"AveragePool", pool_by_type<make_average<float>, make_average<double>>},
    {"AveragePoolGrad", pool_by_type<make_average_gradient<float>, make_average_gradient<double>>},
};

}  // namespace

std::span<const KernelEntry> pool_reference_kernels() { return kPoolReferenceKernels; }

}  // namespace pipetrain
