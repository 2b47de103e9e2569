#include "ops/small_picture_cpu.h"

#include <omp.h>

#include <algorithm>

#include "ops/blocked_product_cpu.h"
#include "ops/gemm_cpu.h"

namespace pipetrain {
namespace {

using blocked::kLanes;
using blocked::kPanel;

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

/// A weight's gradient is the sum over all places where it acts.
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

GemmShape weight_product(const SmallPicture& shape) {
  return {shape.x_width(), shape.y_width(), shape.batch};
}

/// One direction of forward and input gradient: columns are what is computed, depth is summed over.
struct TapProducts {
  std::int64_t batch, depth, columns, taps;
  std::int64_t from_positions, to_positions;
};
TapProducts forward_taps(const SmallPicture& shape) {
  return {shape.batch, shape.inputs,       shape.outputs,
          shape.taps,  shape.in_positions, shape.out_positions};
}
TapProducts input_taps(const SmallPicture& shape) {
  return {shape.batch, shape.outputs,       shape.inputs,
          shape.taps,  shape.out_positions, shape.in_positions};
}

/// Channel blocks whose taps for one panel stay in the first-level cache.
constexpr std::int64_t kBlocksTogether = 4;

std::int64_t panels_of(const TapProducts& shape) { return (shape.columns + kPanel - 1) / kPanel; }
std::int64_t sums_floats(const TapProducts& shape) {
  return shape.to_positions * shape.batch * kPanel;
}
std::int64_t gathered_floats(const TapProducts& shape) {
  return shape.from_positions * shape.depth * shape.batch;
}

/// Tensors as they are in blocks, (sample, block, position, 8), to (position, block, sample, 8).
void gather(const TapProducts& shape, const float* from, float* to, int threads) {
  const std::int64_t blocks = shape.depth / kLanes, positions = shape.from_positions;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t n = 0; n < shape.batch; ++n) {
      for (std::int64_t q = 0; q < positions; ++q) {
        store8(to + ((q * blocks + block) * shape.batch + n) * kLanes,
               load8(from + ((n * blocks + block) * positions + q) * kLanes));
      }
    }
  }
}

/// y (sample, block, position, 8) = the sum over taps and input positions + bias (unless null);
/// `tap_of` an output and an input position is the tap in the packed weights, -1 for none. The
/// workspace begins at `gathered`.
template <class TapOf>
void multiply_taps(const TapProducts& shape, const float* x, const float* packed, const float* bias,
                   TapOf tap_of, float* y, float* gathered, int threads) {
  gather(shape, x, gathered, threads);
  const std::int64_t blocks = shape.depth / kLanes, panels = panels_of(shape);
  const std::int64_t out_blocks = shape.columns / kLanes, positions = shape.to_positions;
  const std::int64_t rows = shape.batch, half = rows * kLanes;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    float* sums = gathered + gathered_floats(shape) + omp_get_thread_num() * sums_floats(shape);
    const std::int64_t halves = std::min<std::int64_t>(2, out_blocks - 2 * panel);
    for (std::int64_t i = 0; i < 2 * positions; ++i) {
      const std::int64_t block = 2 * panel + i % 2;
      const Vector8 start = bias && block < out_blocks ? load8(bias + block * kLanes) : Vector8{};
      for (std::int64_t n = 0; n < rows; ++n) store8(sums + i * half + n * kLanes, start);
    }
    for (std::int64_t begin = 0; begin < blocks; begin += kBlocksTogether) {
      const std::int64_t count = std::min(kBlocksTogether, blocks - begin);
      const float* u = packed + (panel * shape.depth + begin * kLanes) * shape.taps * kPanel;
      for (std::int64_t p = 0; p < positions; ++p) {
        for (std::int64_t q = 0; q < shape.from_positions; ++q) {
          const std::int64_t tap = tap_of(p, q);
          if (tap < 0) continue;
          blocked::multiply(rows, gathered + (q * blocks + begin) * half, half, u + tap * kPanel,
                            shape.taps * kPanel, count, /*first=*/false, sums + 2 * p * half, half);
        }
      }
    }
    for (std::int64_t n = 0; n < rows; ++n) {
      for (std::int64_t h = 0; h < halves; ++h) {
        float* to = y + (n * out_blocks + 2 * panel + h) * positions * kLanes;
        for (std::int64_t p = 0; p < positions; ++p)
          store8(to + p * kLanes, load8(sums + (2 * p + h) * half + n * kLanes));
      }
    }
  }
}

/// Floats of a packed copy, for the direction that needs more.
std::int64_t packed_floats(const SmallPicture& shape) {
  const WeightShape weights{shape.outputs, shape.inputs, shape.taps};
  return std::max(packed_convolution_floats(weights, /*input_gradient=*/false),
                  packed_convolution_floats(weights, /*input_gradient=*/true));
}

/// The weights as they are read, packed here unless they are already, and what is left of the
/// workspace.
struct Operands {
  const float* packed;
  float* workspace;
};
Operands operands_of(const SmallPicture& shape, bool input_gradient, const ConvolutionWeights& w,
                     std::byte* workspace, int threads) {
  auto* own = reinterpret_cast<float*>(workspace);
  if (w.packed) return {w.data, own};
  pack_convolution({shape.outputs, shape.inputs, shape.taps}, input_gradient, w.data, own, threads);
  return {own, own + packed_floats(shape)};
}

}  // namespace

std::optional<SmallPicture> small_picture(const ConvGeometry& geometry) {
  if (geometry.group != 1 || geometry.window.size() != 2 || geometry.inputs % kLanes != 0 ||
      geometry.outputs % kLanes != 0) {
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
  if (2 * out.in_positions > out.taps) return {};
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

bool small_picture_packs(const SmallPicture& shape) {
  constexpr std::int64_t kFewestSamples = 16;
  return shape.batch >= kFewestSamples;
}

bool small_picture_weight_gradient_pays(const SmallPicture& shape) {
  constexpr std::int64_t kFewestSamples = 32;
  constexpr std::int64_t kLargestMatrix = 1 << 23;
  return shape.batch >= kFewestSamples && shape.x_width() <= kLargestMatrix / shape.y_width();
}

std::size_t small_picture_workspace_bytes(const SmallPicture& shape, bool packed, int threads) {
  std::int64_t most = 0;
  for (const TapProducts& each : {forward_taps(shape), input_taps(shape)})
    most = std::max(most, gathered_floats(each) + threads * sums_floats(each));
  return static_cast<std::size_t>(most + (packed ? 0 : packed_floats(shape))) * sizeof(float);
}

std::size_t small_picture_weight_gradient_workspace_bytes(const SmallPicture& shape, int threads) {
  return static_cast<std::size_t>(shape.x_width() * shape.y_width()) * sizeof(float) +
         gemm_workspace_bytes(weight_product(shape), threads);
}

void small_picture_forward(const SmallPicture& shape, const float* x, const ConvolutionWeights& w,
                           const float* bias, float* y, std::byte* workspace, int threads) {
  const Operands own = operands_of(shape, /*input_gradient=*/false, w, workspace, threads);
  const auto tap_of = [&](std::int64_t p, std::int64_t q) {
    return shape.tap[static_cast<std::size_t>(p * shape.in_positions + q)];
  };
  multiply_taps(forward_taps(shape), x, own.packed, bias, tap_of, y, own.workspace, threads);
}

void small_picture_input_gradient(const SmallPicture& shape, const float* dy,
                                  const ConvolutionWeights& w, float* dx, std::byte* workspace,
                                  int threads) {
  const Operands own = operands_of(shape, /*input_gradient=*/true, w, workspace, threads);
  const auto tap_of = [&](std::int64_t q, std::int64_t p) {
    const std::int64_t tap = shape.tap[static_cast<std::size_t>(p * shape.in_positions + q)];
    return tap < 0 ? tap : shape.taps - 1 - tap;  // reversed when they were packed
  };
  multiply_taps(input_taps(shape), dy, own.packed, nullptr, tap_of, dx, own.workspace, threads);
}

void small_picture_weight_gradient(const SmallPicture& shape, const float* x, const float* dy,
                                   float* dw, float* dbias, std::byte* workspace, int threads) {
  auto* matrix = reinterpret_cast<float*>(workspace);
  gemm(weight_product(shape), {x, 1, shape.x_width()}, {dy, shape.y_width(), 1}, nullptr, matrix,
       reinterpret_cast<std::byte*>(matrix + shape.x_width() * shape.y_width()), threads);
  fold(shape, matrix, dw, threads);
  if (dbias) sum_positions(shape, dy, dbias);
}

}  // namespace pipetrain
