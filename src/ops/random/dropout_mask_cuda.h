// Dropout of one element on GPUs: the mask of ops/random/dropout.h (C++17: nvcc and NVRTC compile
// this file).
#pragma once

#include <cstdint>

#include "base/random.h"
#include "device/queue_cuda.h"

namespace pipetrain {

struct DropoutMask {
  PhiloxKey key;
  std::uint32_t threshold;
  float scale;
  std::int64_t first_sample, per_sample;
};

/// Element `i` of a micro-batch, whose value is x. Element 8 w + l of a group of 32 takes word w of
/// its l-th counter.
__device__ __forceinline__ float drop_out(const DropoutMask& mask, float x, std::int64_t i) {
  const auto sample = static_cast<std::uint64_t>(mask.first_sample + i / mask.per_sample);
  const std::int64_t element = i % mask.per_sample;
  const auto within = static_cast<int>(element % 32);
  const auto block = static_cast<std::uint64_t>(8 * (element / 32) + within % 8);
  const PhiloxKey low = philox_key(block), high = philox_key(sample);
  const PhiloxBlock numbers =
      philox(mask.key, {{low.word[0], low.word[1], high.word[0], high.word[1]}});
  const std::uint32_t number = within < 8    ? numbers.word[0]
                               : within < 16 ? numbers.word[1]
                               : within < 24 ? numbers.word[2]
                                             : numbers.word[3];
  return number >= mask.threshold ? x * mask.scale : 0.0f;
}

}  // namespace pipetrain
