// Weight gradients that lie in blocks of 16 by 16 or 8 by 8 channels, as oneDNN's kernels leave
// them, to row-major order.
#pragma once

#include <cstdint>

namespace pipetrain {

struct WeightBlocks {
  std::int64_t outputs = 0, inputs = 0, taps = 0;  // channels: multiples of 8
  std::int64_t block = 16;                         // of channels: 16 or 8; the last is filled up
};

/// (outputs / block, inputs / block, taps, inputs of a block, outputs of a block) to (outputs,
/// inputs, taps): written, or added to what is there.
void unblock_weights(const WeightBlocks& shape, const float* blocked, bool add, float* weights,
                     int threads);

}  // namespace pipetrain
