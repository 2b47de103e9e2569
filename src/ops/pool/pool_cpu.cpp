// Pooling on the CPU, for row-major and channel-blocked tensors alike. For each row of windows and
// each tap, the inner loop runs over adjacent windows (row-major) or over the channels of a block,
// so that it vectorises.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/kernel/channel_block.h"
#include "ops/pool/pool.h"

namespace pipetrain {
namespace {

struct PoolShape {
  std::array<WindowAxis, 3> axes;
  std::int64_t planes;       // (N * C / lanes)
  std::int64_t x_positions;  // of one plane
  std::int64_t y_positions;
  bool parallel;
};

PoolShape pool_shape(const Attributes& attributes, const TensorType& x, const TensorType& y) {
  PoolShape out;
  out.axes = three_axes(pool_window(attributes, x.shape));
  out.planes = x.shape[0] * x.shape[1] / channel_block(x);
  out.x_positions = x.shape.count(2, x.shape.rank());
  out.y_positions = y.shape.count(2, y.shape.rank());
  out.parallel = x.count() >= 1 << 15;
  return out;
}

/// Calls `row(tap, y_begin, y_end, x_begin, x_step)` for every row of windows of a plane and every
/// tap: the windows [y_begin, y_end) read the input positions x_begin, x_begin + x_step, …
/// `start(y_begin, y_end)` comes before the taps of a row, `end(y_begin, y_end)` after them.
template <class Start, class Row, class End>
void for_each_row(const std::array<WindowAxis, 3>& axes, Start start, Row row, End end) {
  const auto& [d, h, w] = axes;
  for (std::int64_t i = 0; i < d.output; ++i) {
    for (std::int64_t j = 0; j < h.output; ++j) {
      const std::int64_t y = (i * h.output + j) * w.output;
      start(y, y + w.output);
      for (std::int64_t a = d.first_tap(i); a < d.last_tap(i); ++a) {
        for (std::int64_t b = h.first_tap(j); b < h.last_tap(j); ++b) {
          const std::int64_t x =
              ((d.start(i) + a * d.dilation) * h.input + h.start(j) + b * h.dilation) * w.input;
          for (std::int64_t c = 0; c < w.kernel; ++c) {
            const std::int64_t first = w.first_window(c);
            const std::int64_t last = w.last_window(c);
            if (first < last) row(y + first, y + last, x + w.start(first) + c * w.dilation);
          }
        }
      }
      end(y, y + w.output);
    }
  }
}

/// Calls `body(step)` with the stride as a compile-time constant where that lets the inner loop
/// vectorise.
template <int kLanes, class Body>
void with_constant_stride(std::int64_t stride, Body body) {
  if (kLanes > 1 || stride > 2) {
    body(stride);
  } else if (stride == 1) {
    body(std::integral_constant<std::int64_t, 1>());
  } else {
    body(std::integral_constant<std::int64_t, 2>());
  }
}

template <int kLanes>
void max_plane(const PoolShape& shape, const float* x, float* y, std::int32_t* index) {
  with_constant_stride<kLanes>(shape.axes[2].stride, [&](auto step) {
    for_each_row(
        shape.axes,
        [&](std::int64_t begin, std::int64_t end) {
          std::fill(y + begin * kLanes, y + end * kLanes, -std::numeric_limits<float>::infinity());
          std::fill(index + begin * kLanes, index + end * kLanes, -1);
        },
        [&](std::int64_t begin, std::int64_t end, std::int64_t from) {
          const float* __restrict in = x + from * kLanes;
          float* __restrict best = y + begin * kLanes;
          std::int32_t* __restrict where = index + begin * kLanes;
          const auto count = static_cast<std::int32_t>(end - begin);
          const auto first = static_cast<std::int32_t>(from);
          const auto stride = static_cast<std::int32_t>(step);
          for (std::int32_t o = 0; o < count; ++o) {
            for (int lane = 0; lane < kLanes; ++lane) {
              const float value = in[static_cast<std::int64_t>(o) * stride * kLanes + lane];
              const std::int64_t at = static_cast<std::int64_t>(o) * kLanes + lane;
              const bool take = (value > best[at]) | (value != value) | (where[at] < 0);
              best[at] = take ? value : best[at];
              where[at] = take ? first + o * stride : where[at];
            }
          }
        },
        [](std::int64_t, std::int64_t) {});
  });
}

/// Whether windows are 2 x 2 with stride 2, the most frequent case.
bool is_fours(const PoolShape& shape) {
  const auto& [d, h, w] = shape.axes;
  const auto halves = [](const WindowAxis& axis) {
    return axis.kernel == 2 && axis.stride == 2 && axis.dilation == 1 && axis.pad_begin == 0 &&
           2 * axis.output <= axis.input;
  };
  return d.input == 1 && d.kernel == 1 && d.output == 1 && d.pad_begin == 0 && halves(h) &&
         halves(w);
}

/// max_plane() for those windows, row-major: all four taps at once.
void max_plane_of_fours(const PoolShape& shape, const float* x, float* y, std::int32_t* index) {
  const auto& [d, h, w] = shape.axes;
  const auto width = static_cast<std::int32_t>(w.input);
  const auto outputs = static_cast<std::int32_t>(w.output);
  for (std::int32_t row = 0; row < static_cast<std::int32_t>(h.output); ++row) {
    const std::int32_t first = 2 * row * width;
    const float* __restrict upper = x + first;
    const float* __restrict lower = upper + width;
    float* __restrict best = y + row * outputs;
    std::int32_t* __restrict where = index + row * outputs;
    for (std::int32_t o = 0; o < outputs; ++o) {
      float most = upper[2 * o];
      std::int32_t at = first + 2 * o;
      const auto look = [&](float value, std::int32_t place) {
        const bool take = (value > most) | (value != value);
        most = take ? value : most;
        at = take ? place : at;
      };
      look(upper[2 * o + 1], first + 2 * o + 1);
      look(lower[2 * o], first + width + 2 * o);
      look(lower[2 * o + 1], first + width + 2 * o + 1);
      best[o] = most;
      where[o] = at;
    }
  }
}

template <int kLanes>
void max_gradient_plane(const PoolShape& shape, const float* dy, const std::int32_t* index,
                        float* dx) {
  std::fill_n(dx, shape.x_positions * kLanes, 0.0F);
  if constexpr (kLanes == 1) {
    for (std::int64_t o = 0; o < shape.y_positions; ++o) {
      if (index[o] >= 0) dx[index[o]] += dy[o];
    }
    return;
  }
  for_each_row(
      shape.axes, [](std::int64_t, std::int64_t) {},
      [&](std::int64_t begin, std::int64_t end, std::int64_t from) {
        const auto stride = static_cast<std::int32_t>(shape.axes[2].stride);
        auto position = static_cast<std::int32_t>(from);
        for (std::int64_t o = begin; o < end; ++o, position += stride) {
          float* __restrict to = dx + static_cast<std::int64_t>(position) * kLanes;
          const float* __restrict gradient = dy + o * kLanes;
          const std::int32_t* __restrict where = index + o * kLanes;
          for (int lane = 0; lane < kLanes; ++lane) {
            // A masked bit pattern, because g++ 12 at -O3 miscompiles `condition ? gradient : 0`
            // here (drops every second vector).
            const std::int32_t mask = -static_cast<std::int32_t>(where[lane] == position);
            to[lane] += std::bit_cast<float>(std::bit_cast<std::int32_t>(gradient[lane]) & mask);
          }
        }
      },
      [](std::int64_t, std::int64_t) {});
}

/// 1 / (positions averaged over) of a window is the product of these over the axes; the last axis
/// varies fastest.
struct AverageWeights {
  std::vector<float> rows;     // (D * H)
  std::vector<float> columns;  // (W)
};

AverageWeights average_weights(const Attributes& attributes, const Window& window) {
  AverageWeights out;
  out.rows = {1.0F};
  for (std::size_t axis = 0; axis < window.size(); ++axis) {
    std::vector<float> factors;
    for (const std::int64_t count : averaged_positions(attributes, window, axis)) {
      factors.push_back(1.0F / static_cast<float>(count));
    }
    if (axis + 1 == window.size()) {
      out.columns = std::move(factors);
      continue;
    }
    std::vector<float> rows;
    for (const float outer : out.rows) {
      for (const float factor : factors) rows.push_back(outer * factor);
    }
    out.rows = std::move(rows);
  }
  return out;
}

template <int kLanes>
void average_plane(const PoolShape& shape, const AverageWeights& weights, const float* x,
                   float* y) {
  with_constant_stride<kLanes>(shape.axes[2].stride, [&](auto step) {
    for_each_row(
        shape.axes,
        [&](std::int64_t begin, std::int64_t end) {
          std::fill(y + begin * kLanes, y + end * kLanes, 0.0F);
        },
        [&](std::int64_t begin, std::int64_t end, std::int64_t from) {
          const float* __restrict in = x + from * kLanes;
          float* __restrict sum = y + begin * kLanes;
          for (std::int64_t o = 0; o < end - begin; ++o) {
            for (int lane = 0; lane < kLanes; ++lane) {
              sum[o * kLanes + lane] += in[o * step * kLanes + lane];
            }
          }
        },
        [&](std::int64_t begin, std::int64_t end) {
          const float row = weights.rows[static_cast<std::size_t>(begin / shape.axes[2].output)];
          for (std::int64_t o = begin; o < end; ++o) {
            const float weight = row * weights.columns[static_cast<std::size_t>(o - begin)];
            for (int lane = 0; lane < kLanes; ++lane) y[o * kLanes + lane] *= weight;
          }
        });
  });
}

template <int kLanes>
void average_gradient_plane(const PoolShape& shape, const AverageWeights& weights, const float* dy,
                            float* dx) {
  std::fill_n(dx, shape.x_positions * kLanes, 0.0F);
  const std::int64_t width = shape.axes[2].output;
  with_constant_stride<kLanes>(shape.axes[2].stride, [&](auto step) {
    for_each_row(
        shape.axes, [](std::int64_t, std::int64_t) {},
        [&](std::int64_t begin, std::int64_t end, std::int64_t from) {
          const float row = weights.rows[static_cast<std::size_t>(begin / width)];
          const float* __restrict column = weights.columns.data() + begin % width;
          for (std::int64_t o = 0; o < end - begin; ++o) {
            const float weight = row * column[o];
            float* __restrict to = dx + (from + o * step) * kLanes;
            const float* __restrict gradient = dy + (begin + o) * kLanes;
#pragma omp simd
            for (int lane = 0; lane < kLanes; ++lane) to[lane] += weight * gradient[lane];
          }
        },
        [](std::int64_t, std::int64_t) {});
  });
}

/// Runs `body(plane)` for every plane.
template <class Body>
void for_each_plane(const PoolShape& shape, Body body) {
#pragma omp parallel for schedule(static) if (shape.parallel)
  for (std::int64_t plane = 0; plane < shape.planes; ++plane) body(plane);
}

template <int kLanes>
std::unique_ptr<Kernel> make_max(const KernelRequest& request) {
  const PoolShape shape =
      pool_shape(request.node.attributes, request.inputs[0], request.outputs[0]);
  const std::int64_t spare = request.outputs[0].count();
  const bool fours = kLanes == 1 && is_fours(shape);
  return make_kernel(
      [shape, fours](std::span<const Tensor> in, std::span<const Tensor> out,
                     const RunContext& context) {
        // Needed during the search even if the index output is unused.
        auto* index = out.size() > 1 && out[1] ? out[1].as<std::int32_t>()
                                               : reinterpret_cast<std::int32_t*>(context.workspace);
        for_each_plane(shape, [&](std::int64_t plane) {
          const std::int64_t y = plane * shape.y_positions * kLanes;
          const float* x = in[0].as<float>() + plane * shape.x_positions * kLanes;
          if (fours) {
            max_plane_of_fours(shape, x, out[0].as<float>() + y, index + y);
          } else {
            max_plane<kLanes>(shape, x, out[0].as<float>() + y, index + y);
          }
        });
      },
      static_cast<std::size_t>(spare) * sizeof(std::int32_t));
}

template <int kLanes>
std::unique_ptr<Kernel> make_max_gradient(const KernelRequest& request) {
  const PoolShape shape =
      pool_shape(request.node.attributes, request.outputs[0], request.inputs[0]);
  return make_kernel(
      [shape](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        for_each_plane(shape, [&](std::int64_t plane) {
          const std::int64_t y = plane * shape.y_positions * kLanes;
          max_gradient_plane<kLanes>(shape, in[0].as<float>() + y, in[1].as<std::int32_t>() + y,
                                     out[0].as<float>() + plane * shape.x_positions * kLanes);
        });
      });
}

template <int kLanes>
std::unique_ptr<Kernel> make_average(const KernelRequest& request) {
  const Attributes& attributes = request.node.attributes;
  const PoolShape shape = pool_shape(attributes, request.inputs[0], request.outputs[0]);
  const AverageWeights weights =
      average_weights(attributes, pool_window(attributes, request.inputs[0].shape));
  return make_kernel([shape, weights](std::span<const Tensor> in, std::span<const Tensor> out,
                                      const RunContext&) {
    for_each_plane(shape, [&](std::int64_t plane) {
      average_plane<kLanes>(shape, weights, in[0].as<float>() + plane * shape.x_positions * kLanes,
                            out[0].as<float>() + plane * shape.y_positions * kLanes);
    });
  });
}

template <int kLanes>
std::unique_ptr<Kernel> make_average_gradient(const KernelRequest& request) {
  const Attributes& attributes = request.node.attributes;
  const PoolShape shape = pool_shape(attributes, request.outputs[0], request.inputs[0]);
  const AverageWeights weights =
      average_weights(attributes, pool_window(attributes, request.outputs[0].shape));
  return make_kernel(
      [shape, weights](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        for_each_plane(shape, [&](std::int64_t plane) {
          average_gradient_plane<kLanes>(shape, weights,
                                         in[0].as<float>() + plane * shape.y_positions * kLanes,
                                         out[0].as<float>() + plane * shape.x_positions * kLanes);
        });
      });
}

/// The factory for the layout, which all tensors of the node must share.
template <MakeKernel make_1, MakeKernel make_8, MakeKernel make_16>
std::unique_ptr<Kernel> by_layout(const KernelRequest& request) {
  const TensorType& first = request.inputs[0];
  if (first.dtype != DType::kFloat32) return nullptr;
  const auto check = [&](const TensorType& type) {
    PT_CHECK(type.dtype == DType::kUndefined || type.layout == first.layout, kInternal,
             "pooling needs all its tensors in one layout");
  };
  for (const TensorType& type : request.inputs) check(type);
  for (const TensorType& type : request.outputs) check(type);
  switch (first.layout) {
    case Layout::kRowMajor:
      return make_1(request);
    case Layout::kBlocked8:
      return make_8(request);
    case Layout::kBlocked16:
      return make_16(request);
    case Layout::kChannelsLast:
    case Layout::kPaddedRows:
      break;
  }
  return nullptr;
}

constexpr KernelEntry kKernels[] = {
    {"MaxPool", by_layout<make_max<1>, make_max<8>, make_max<16>>},
    {"MaxPoolGrad", by_layout<make_max_gradient<1>, make_max_gradient<8>, make_max_gradient<16>>},
    {"AveragePool", by_layout<make_average<1>, make_average<8>, make_average<16>>},
    {"AveragePoolGrad",
     by_layout<make_average_gradient<1>, make_average_gradient<8>, make_average_gradient<16>>},
};

}  // namespace

std::span<const KernelEntry> pool_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
