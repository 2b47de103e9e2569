#include "ops/conv/small_feature_map_cpu.h"

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {
namespace {

using blocked::kLanes;
using blocked::kPanel;

/// One direction of forward and input gradient: columns are what is computed, depth is summed over.
struct TapProducts {
  std::int64_t batch, depth, columns, taps;
  std::int64_t from_positions, to_positions;
  std::int64_t lanes;
};
TapProducts forward_taps(const SmallFeatureMap& shape) {
  return {shape.batch,        shape.inputs,        shape.outputs, shape.taps,
          shape.in_positions, shape.out_positions, shape.lanes};
}
TapProducts input_taps(const SmallFeatureMap& shape) {
  return {shape.batch,         shape.outputs,      shape.inputs, shape.taps,
          shape.out_positions, shape.in_positions, shape.lanes};
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

/// Tensors as they are in blocks to (position, block, sample, 8).
template <class Element>
void gather(const TapProducts& shape, const Element* from, float* to, int threads) {
  const std::int64_t blocks = shape.depth / kLanes, positions = shape.from_positions;
  const blocked::ChannelBlocks tensor{shape.depth, positions, shape.lanes};
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t n = 0; n < shape.batch; ++n) {
      for (std::int64_t q = 0; q < positions; ++q) {
        store8(to + ((q * blocks + block) * shape.batch + n) * kLanes,
               load8(from + tensor.at(n, block) + q * shape.lanes));
      }
    }
  }
}

/// y, in blocks of channels, = the sum over taps and input positions + bias (unless null);
/// `tap_of` an output and an input position is the tap in the packed weights, -1 for none. The
/// workspace begins at `gathered`.
template <class Element, class TapOf>
void multiply_taps(const TapProducts& shape, const Element* x, const float* packed,
                   const float* bias, TapOf tap_of, Element* y, float* gathered, int threads) {
  gather(shape, x, gathered, threads);
  const std::int64_t blocks = shape.depth / kLanes, panels = panels_of(shape);
  const std::int64_t out_blocks = shape.columns / kLanes, positions = shape.to_positions;
  const std::int64_t rows = shape.batch, half = rows * kLanes;
  const blocked::ChannelBlocks result{shape.columns, positions, shape.lanes};
  std::int64_t products = 0;
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t q = 0; q < shape.from_positions; ++q) products += tap_of(p, q) >= 0;
  }
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
      // What is read next comes from memory in the meantime, a part of it during each product.
      const std::int64_t floats = count * kLanes * shape.taps * kPanel;
      const std::int64_t part = floats / std::max<std::int64_t>(products, 1) + 1;
      const float* next = u + floats;
      for (std::int64_t p = 0; p < positions; ++p) {
        for (std::int64_t q = 0; q < shape.from_positions; ++q) {
          const std::int64_t tap = tap_of(p, q);
          if (tap < 0) continue;
          blocked::prefetch(next, part);
          next += part;
          blocked::multiply(rows, gathered + (q * blocks + begin) * half, half, u + tap * kPanel,
                            shape.taps * kPanel, count, /*first=*/false, sums + 2 * p * half, half);
        }
      }
    }
    for (std::int64_t n = 0; n < rows; ++n) {
      for (std::int64_t h = 0; h < halves; ++h) {
        Element* to = y + result.at(n, 2 * panel + h);
        for (std::int64_t p = 0; p < positions; ++p)
          store8(to + p * shape.lanes, load8(sums + (2 * p + h) * half + n * kLanes));
      }
    }
  }
}

/// Input channels whose weights' gradients are written together, in long runs.
constexpr std::int64_t kInputsTogether = 48;

std::int64_t gradient_floats(const SmallFeatureMap& shape) {
  return kInputsTogether * shape.taps * kPanel;
}

/// Writes or adds columns [0, 8 * halves) of sums (count, 16) to rows of dw, which are `row` apart.
void write_columns(const float* sums, std::int64_t count, std::int64_t halves, bool add, float* dw,
                   std::int64_t row) {
  for (std::int64_t k = 0; k < halves * kLanes; k += kLanes) {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      Vector8 lanes[kLanes];
      for (int r = 0; r < kLanes; ++r) lanes[r] = load8(sums + (i + r) * kPanel + k);
      transpose(lanes);
      for (int r = 0; r < kLanes; ++r) {
        float* to = dw + (k + r) * row + i;
        store8(to, add ? load8(to) + lanes[r] : lanes[r]);
      }
    }
  }
}

/// Sums of gathered dy over samples and positions of each channel of a block.
void sum_block(const SmallFeatureMap& shape, const float* z, std::int64_t block, bool add,
               float* dbias) {
  double totals[kLanes] = {};
  for (std::int64_t p = 0; p < shape.out_positions; ++p) {
    const float* from = z + (p * shape.outputs + block * kLanes) * shape.batch;
    for (std::int64_t n = 0; n < shape.batch; ++n) {
      for (int lane = 0; lane < kLanes; ++lane)
        totals[lane] += static_cast<double>(from[n * kLanes + lane]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float& sum = dbias[block * kLanes + lane];
    sum = static_cast<float>(totals[lane]) + (add ? sum : 0.0F);
  }
}

/// Floats of a packed copy, for the direction that needs more.
std::int64_t packed_floats(const SmallFeatureMap& shape) {
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
template <class Element>
Operands operands_of(const SmallFeatureMap& shape, bool input_gradient,
                     const ConvolutionWeights<Element>& w, std::byte* workspace, int threads) {
  auto* own = reinterpret_cast<float*>(workspace);
  if constexpr (std::is_same_v<Element, float>) {
    if (w.packed) return {w.data, own};
  }
  pack_convolution({shape.outputs, shape.inputs, shape.taps}, input_gradient, w.data, own, threads);
  return {own, own + packed_floats(shape)};
}

/// The most positions of a feature map under windows that move by several, next to oneDNN's
/// kernels: gradients are faster for small ones, forwards not at all.
std::int64_t most_strided_positions(ConvolutionPass pass, bool multiplies_bfloat16) {
  switch (pass) {
    case ConvolutionPass::kForward:
      return 0;
    case ConvolutionPass::kInputGradient:
      return multiplies_bfloat16 ? 0 : 64;
    case ConvolutionPass::kWeightGradient:
      return has_avx512() ? 16 : 64;
  }
  return 0;
}

}  // namespace

std::optional<SmallFeatureMap> small_feature_map(const ConvGeometry& geometry, std::int64_t lanes,
                                                 ConvolutionPass pass, bool multiplies_bfloat16) {
  if (geometry.group != 1 || geometry.window.size() != 2 || geometry.inputs % lanes != 0 ||
      geometry.outputs % lanes != 0) {
    return {};
  }
  const WindowAxis& rows = geometry.window[0];
  const WindowAxis& columns = geometry.window[1];
  SmallFeatureMap out{geometry.batch,
                      geometry.inputs,
                      geometry.outputs,
                      rows.input * columns.input,
                      rows.output * columns.output,
                      rows.kernel * columns.kernel,
                      {},
                      lanes,
                      {},
                      {}};
  const bool strided = rows.stride > 1 && columns.stride > 1 && out.taps > 1;
  if (2 * out.in_positions > out.taps &&
      (!strided || out.in_positions > most_strided_positions(pass, multiplies_bfloat16)))
    return {};
  out.tap.assign(static_cast<std::size_t>(out.out_positions * out.in_positions), -1);
  /// The input position that a tap reads for an output position, -1 for none.
  const auto input_of = [&](std::int64_t p, std::int64_t tap) -> std::int64_t {
    const std::int64_t row = rows.start(p / columns.output) + tap / columns.kernel * rows.dilation;
    const std::int64_t column =
        columns.start(p % columns.output) + tap % columns.kernel * columns.dilation;
    const bool inside = row >= 0 && row < rows.input && column >= 0 && column < columns.input;
    return inside ? row * columns.input + column : -1;
  };
  for (std::int64_t tap = 0; tap < out.taps; ++tap) {
    out.begin.push_back(out.pairs.size());
    for (std::int64_t p = 0; p < out.out_positions; ++p) {
      const std::int64_t q = input_of(p, tap);
      if (q < 0) continue;
      out.tap[static_cast<std::size_t>(p * out.in_positions + q)] = tap;
      out.pairs.push_back({q * out.inputs * out.batch, p * out.outputs * out.batch});
    }
  }
  out.begin.push_back(out.pairs.size());
  return out;
}

bool small_feature_map_packs(const SmallFeatureMap& shape) {
  constexpr std::int64_t kFewestSamples = 4;
  return shape.batch >= kFewestSamples;
}

std::size_t small_feature_map_workspace_bytes(const SmallFeatureMap& shape, bool packed,
                                              int threads) {
  std::int64_t most = 0;
  for (const TapProducts& each : {forward_taps(shape), input_taps(shape)})
    most = std::max(most, gathered_floats(each) + threads * sums_floats(each));
  return static_cast<std::size_t>(most + (packed ? 0 : packed_floats(shape))) * sizeof(float);
}

std::size_t small_feature_map_weight_gradient_workspace_bytes(const SmallFeatureMap& shape,
                                                              int threads) {
  return static_cast<std::size_t>(gathered_floats(forward_taps(shape)) +
                                  gathered_floats(input_taps(shape)) +
                                  threads * gradient_floats(shape)) *
         sizeof(float);
}

template <class Element>
void small_feature_map_forward(const SmallFeatureMap& shape, const Element* x,
                               const ConvolutionWeights<Element>& w, const float* bias, Element* y,
                               std::byte* workspace, int threads) {
  const Operands own = operands_of(shape, /*input_gradient=*/false, w, workspace, threads);
  const auto tap_of = [&](std::int64_t p, std::int64_t q) {
    return shape.tap[static_cast<std::size_t>(p * shape.in_positions + q)];
  };
  multiply_taps(forward_taps(shape), x, own.packed, bias, tap_of, y, own.workspace, threads);
}

template <class Element>
void small_feature_map_input_gradient(const SmallFeatureMap& shape, const Element* dy,
                                      const ConvolutionWeights<Element>& w, Element* dx,
                                      std::byte* workspace, int threads) {
  const Operands own = operands_of(shape, /*input_gradient=*/true, w, workspace, threads);
  const auto tap_of = [&](std::int64_t q, std::int64_t p) {
    const std::int64_t tap = shape.tap[static_cast<std::size_t>(p * shape.in_positions + q)];
    return tap < 0 ? tap : shape.taps - 1 - tap;  // reversed when they were packed
  };
  multiply_taps(input_taps(shape), dy, own.packed, nullptr, tap_of, dx, own.workspace, threads);
}

template <class Element>
void small_feature_map_weight_gradient(const SmallFeatureMap& shape, const Element* x,
                                       const Element* dy, bool add, float* dw, float* dbias,
                                       std::byte* workspace, int threads) {
  const TapProducts from = forward_taps(shape), to = input_taps(shape);
  auto* v = reinterpret_cast<float*>(workspace);
  float* z = v + gathered_floats(from);
  float* rest = z + gathered_floats(to);
  gather(from, x, v, threads);
  gather(to, dy, z, threads);
  const std::int64_t out_blocks = shape.outputs / kLanes, panels = (out_blocks + 1) / 2;
  const std::int64_t half = shape.batch * kLanes, row = shape.inputs * shape.taps;
  const std::int64_t together = blocked::channels_together();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    float* sums = rest + omp_get_thread_num() * gradient_floats(shape);
    const std::int64_t halves = std::min<std::int64_t>(2, out_blocks - 2 * panel);
    const float* columns = z + 2 * panel * half;
    float* rows = dw + panel * kPanel * row;
    for (std::int64_t begin = 0; begin < shape.inputs; begin += kInputsTogether) {
      const std::int64_t end = std::min(begin + kInputsTogether, shape.inputs);
      for (std::int64_t c = begin; c < end; c += together) {
        for (std::int64_t k = 0; k < halves * kLanes; ++k) {
          blocked::prefetch(rows + k * row + c * shape.taps,
                            std::min(together, end - c) * shape.taps);
        }
        for (std::int64_t tap = 0; tap < shape.taps; ++tap) {
          blocked::multiply_transposed(end - c, v, half, c, columns, (halves - 1) * half,
                                       shape.batch, shape.pairs_of(tap), /*first=*/true,
                                       sums + ((c - begin) * shape.taps + tap) * kPanel,
                                       shape.taps * kPanel);
        }
      }
      write_columns(sums, (end - begin) * shape.taps, halves, add, rows + begin * shape.taps, row);
    }
    for (std::int64_t h = 0; dbias && h < halves; ++h)
      sum_block(shape, z, 2 * panel + h, add, dbias);
  }
}

#define PIPETRAIN_SMALL_FEATURE_MAP_OF(Element)                                                \
  template void small_feature_map_forward(const SmallFeatureMap&, const Element*,              \
                                          const ConvolutionWeights<Element>&, const float*,    \
                                          Element*, std::byte*, int);                          \
  template void small_feature_map_input_gradient(const SmallFeatureMap&, const Element*,       \
                                                 const ConvolutionWeights<Element>&, Element*, \
                                                 std::byte*, int);                             \
  template void small_feature_map_weight_gradient(const SmallFeatureMap&, const Element*,      \
                                                  const Element*, bool, float*, float*,        \
                                                  std::byte*, int)
PIPETRAIN_SMALL_FEATURE_MAP_OF(float);
PIPETRAIN_SMALL_FEATURE_MAP_OF(BFloat16);
#undef PIPETRAIN_SMALL_FEATURE_MAP_OF

}  // namespace pipetrain
