#include "ops/small_picture_cpu.h"

#include <algorithm>

#include "ops/gemm_cpu.h"
#include "ops/vector8_cpu.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLanes = 8;

/// Calls visit(offset in w of tap 0 of the first lane, offset in the matrix of positions 0 and 0)
/// for every input channel and block of output channels.
template <class Visit>
void for_each_block(const SmallPicture& shape, int threads, Visit visit) {
  const std::int64_t blocks = shape.outputs / kLanes;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t c = 0; c < shape.inputs; ++c) {
    const std::int64_t row = c / kLanes * kLanes * shape.in_positions + c % kLanes;
    for (std::int64_t block = 0; block < blocks; ++block) {
      visit((block * kLanes * shape.inputs + c) * shape.taps,
            row * shape.y_width() + block * shape.out_positions * kLanes);
    }
  }
}

/// Where the lanes of output position p and input position q stand, from positions 0 and 0.
std::int64_t place(const SmallPicture& shape, std::int64_t p, std::int64_t q) {
  return q * kLanes * shape.y_width() + p * kLanes;
}

void expand(const SmallPicture& shape, const float* w, float* matrix, int threads) {
  const std::int64_t lane_stride = shape.inputs * shape.taps;
  for_each_block(shape, threads, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t p = 0; p < shape.out_positions; ++p) {
      for (std::int64_t q = 0; q < shape.in_positions; ++q) {
        const std::int64_t tap = shape.tap[static_cast<std::size_t>(p * shape.in_positions + q)];
        Vector8 lanes = {};
        for (int lane = 0; tap >= 0 && lane < kLanes; ++lane) {
          lanes[lane] = w[from + lane * lane_stride + tap];
        }
        store8(matrix + to + place(shape, p, q), lanes);
      }
    }
  });
}

/// The gradient of expand(): a weight's is the sum over all places where it acts.
void fold(const SmallPicture& shape, const float* matrix, float* dw, int threads) {
  const std::int64_t lane_stride = shape.inputs * shape.taps;
  for_each_block(shape, threads, [&](std::int64_t to, std::int64_t from) {
    for (std::int64_t tap = 0; tap < shape.taps; ++tap) {
      Vector8 sum = {};
      for (std::int64_t p = 0; p < shape.out_positions; ++p) {
        for (std::int64_t q = 0; q < shape.in_positions; ++q) {
          if (shape.tap[static_cast<std::size_t>(p * shape.in_positions + q)] != tap) continue;
          sum += load8(matrix + from + place(shape, p, q));
        }
      }
      for (int lane = 0; lane < kLanes; ++lane) dw[to + lane * lane_stride + tap] = sum[lane];
    }
  });
}

void sum_positions(const SmallPicture& shape, const float* dy, float* dbias) {
  for (std::int64_t k = 0; k < shape.outputs; ++k) {
    const float* from = dy + k / kLanes * shape.out_positions * kLanes + k % kLanes;
    double sum = 0;
    for (std::int64_t n = 0; n < shape.batch; ++n) {
      for (std::int64_t p = 0; p < shape.out_positions; ++p) {
        sum += static_cast<double>(from[n * shape.y_width() + p * kLanes]);
      }
    }
    dbias[k] = static_cast<float>(sum);
  }
}

struct Workspace {
  float *matrix, *bias;
  std::byte* product;
};
Workspace workspace_of(const SmallPicture& shape, std::byte* memory) {
  auto* matrix = reinterpret_cast<float*>(memory);
  float* bias = matrix + shape.x_width() * shape.y_width();
  return {matrix, bias, reinterpret_cast<std::byte*>(bias + shape.y_width())};
}

GemmShape forward_product(const SmallPicture& shape) {
  return {shape.batch, shape.y_width(), shape.x_width()};
}
GemmShape input_product(const SmallPicture& shape) {
  return {shape.batch, shape.x_width(), shape.y_width()};
}
GemmShape weight_product(const SmallPicture& shape) {
  return {shape.x_width(), shape.y_width(), shape.batch};
}

}  // namespace

std::optional<SmallPicture> small_picture(const ConvGeometry& geometry) {
  constexpr std::int64_t kFewestSamples = 32;
  constexpr std::int64_t kLargestMatrix = 1 << 23;
  if (geometry.group != 1 || geometry.batch < kFewestSamples || geometry.window.size() != 2 ||
      geometry.inputs % kLanes != 0 || geometry.outputs % kLanes != 0) {
    return {};
  }
  const WindowAxis& rows = geometry.window[0];
  const WindowAxis& columns = geometry.window[1];
  SmallPicture out{geometry.batch,
                   geometry.inputs,
                   geometry.outputs,
                   rows.input * columns.input,
                   rows.output * columns.output,
                   rows.kernel * columns.kernel,
                   {}};
  if (2 * out.in_positions > out.taps || out.x_width() > kLargestMatrix / out.y_width()) return {};
  out.tap.assign(static_cast<std::size_t>(out.out_positions * out.in_positions), -1);
  const auto input_of = [](const WindowAxis& axis, std::int64_t output, std::int64_t tap) {
    return axis.start(output) + tap * axis.dilation;
  };
  for (std::int64_t p = 0; p < out.out_positions; ++p) {
    for (std::int64_t t = 0; t < out.taps; ++t) {
      const std::int64_t row = input_of(rows, p / columns.output, t / columns.kernel);
      const std::int64_t column = input_of(columns, p % columns.output, t % columns.kernel);
      if (row < 0 || row >= rows.input || column < 0 || column >= columns.input) continue;
      out.tap[static_cast<std::size_t>(p * out.in_positions + row * columns.input + column)] = t;
    }
  }
  return out;
}

std::size_t small_picture_workspace_bytes(const SmallPicture& shape, int threads) {
  const std::int64_t own = (shape.x_width() + 1) * shape.y_width();
  const std::size_t product = std::max({gemm_workspace_bytes(forward_product(shape), threads),
                                        gemm_workspace_bytes(input_product(shape), threads),
                                        gemm_workspace_bytes(weight_product(shape), threads)});
  return static_cast<std::size_t>(own) * sizeof(float) + product;
}

void small_picture_forward(const SmallPicture& shape, const float* x, const float* w,
                           const float* bias, float* y, std::byte* workspace, int threads) {
  const Workspace own = workspace_of(shape, workspace);
  expand(shape, w, own.matrix, threads);
  for (std::int64_t i = 0; bias && i < shape.y_width(); ++i) {
    own.bias[i] = bias[i / (shape.out_positions * kLanes) * kLanes + i % kLanes];
  }
  gemm(forward_product(shape), {x, shape.x_width(), 1}, {own.matrix, shape.y_width(), 1},
       bias ? own.bias : nullptr, y, own.product, threads);
}

void small_picture_input_gradient(const SmallPicture& shape, const float* dy, const float* w,
                                  float* dx, std::byte* workspace, int threads) {
  const Workspace own = workspace_of(shape, workspace);
  expand(shape, w, own.matrix, threads);
  gemm(input_product(shape), {dy, shape.y_width(), 1}, {own.matrix, 1, shape.y_width()}, nullptr,
       dx, own.product, threads);
}

void small_picture_weight_gradient(const SmallPicture& shape, const float* x, const float* dy,
                                   float* dw, float* dbias, std::byte* workspace, int threads) {
  const Workspace own = workspace_of(shape, workspace);
  gemm(weight_product(shape), {x, 1, shape.x_width()}, {dy, shape.y_width(), 1}, nullptr,
       own.matrix, own.product, threads);
  fold(shape, own.matrix, dw, threads);
  if (dbias) sum_positions(shape, dy, dbias);
}

}  // namespace pipetrain
