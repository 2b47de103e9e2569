// Sums of feature maps in blocks of channels, as the gradients of biases. Include it from *_cpu.cpp
// files only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {

/// Sums of dy, a tensor of `batch` samples, over all samples and positions of each of the eight
/// channels of a block: written to their places in `sums`, or added.
template <class Element>
void sum_channels(const blocked::ChannelBlocks& tensor, std::int64_t batch, const Element* dy,
                  std::int64_t block, bool add, float* sums) {
  constexpr std::int64_t kLanes = blocked::kLanes, kTogether = 256;  // positions summed in float
  double totals[kLanes] = {};
  for (std::int64_t n = 0; n < batch; ++n) {
    const Element* from = dy + tensor.at(n, block);
    for (std::int64_t begin = 0; begin < tensor.positions; begin += kTogether) {
      Vector8 sum = {};
      for (std::int64_t i = begin; i < std::min(begin + kTogether, tensor.positions); ++i)
        sum += load8(from + i * tensor.lanes);
      for (int lane = 0; lane < kLanes; ++lane) totals[lane] += static_cast<double>(sum[lane]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float& sum = sums[block * kLanes + lane];
    sum = static_cast<float>(totals[lane]) + (add ? sum : 0.0F);
  }
}

}  // namespace pipetrain
