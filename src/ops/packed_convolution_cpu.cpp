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

template <class Element>
void pack_convolution(const WeightShape& shape, bool input_gradient, const Element* w,
                      float* packed, int threads) {
  const std::int64_t inputs = shape.inputs, taps = shape.taps;
  const std::int64_t columns = input_gradient ? inputs : shape.outputs;
  const std::int64_t depth = input_gradient ? shape.outputs : inputs;
  const std::int64_t blocks = columns / kLanes, panel = depth * taps * kPanel;
  const auto column = [&](std::int64_t block) {
    return packed + block / 2 * panel + block % 2 * kLanes;
  };
  // Either way the weights are read in their order.
  if (input_gradient) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        transpose_eight(w + (k * inputs + block * kLanes) * taps, taps, taps,
                        column(block) + ((k + 1) * taps - 1) * kPanel, -kPanel);
      }
    }
  } else {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t block = 0; block < blocks; ++block) {
      transpose_eight(w + block * kLanes * inputs * taps, inputs * taps, inputs * taps,
                      column(block), kPanel);
    }
  }
  if (blocks % 2 == 0) return;
  for (std::int64_t row = 0; row < depth * taps; ++row)
    std::fill_n(column(blocks) + row * kPanel, kLanes, 0.0F);
}

template void pack_convolution(const WeightShape&, bool, const float*, float*, int);
template void pack_convolution(const WeightShape&, bool, const BFloat16*, float*, int);

}  // namespace pipetrain
