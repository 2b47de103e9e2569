#include "ops/packed_convolution_cpu.h"

#include <algorithm>

#include "ops/blocked_product_cpu.h"

namespace pipetrain {
namespace {

using blocked::kLanes;
using blocked::kPanel;

std::int64_t panels(std::int64_t channels) { return (channels + kPanel - 1) / kPanel; }

}  // namespace

std::int64_t packed_convolution_floats(const WeightShape& shape, bool input_gradient) {
  const std::int64_t columns = input_gradient ? shape.inputs : shape.outputs;
  const std::int64_t depth = input_gradient ? shape.outputs : shape.inputs;
  return panels(columns) * kPanel * depth * shape.taps;
}

void pack_convolution(const WeightShape& shape, bool input_gradient, const float* w, float* packed,
                      int threads) {
  const auto [outputs, inputs, taps] = shape;
  const std::int64_t columns = input_gradient ? inputs : outputs;
  const std::int64_t depth = input_gradient ? outputs : inputs;
  const std::int64_t halves = 2 * panels(columns);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t half = 0; half < halves; ++half) {
    float* to = packed + half / 2 * depth * taps * kPanel + half % 2 * kLanes;
    if (half * kLanes >= columns) {
      for (std::int64_t row = 0; row < depth * taps; ++row)
        std::fill_n(to + row * kPanel, kLanes, 0.0F);
    } else if (input_gradient) {
      for (std::int64_t k = 0; k < depth; ++k) {
        transpose_eight(w + (k * inputs + half * kLanes) * taps, taps, taps,
                        to + ((k + 1) * taps - 1) * kPanel, -kPanel);
      }
    } else {
      transpose_eight(w + half * kLanes * inputs * taps, inputs * taps, inputs * taps, to, kPanel);
    }
  }
}

}  // namespace pipetrain
