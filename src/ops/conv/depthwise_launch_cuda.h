// Depthwise convolutions of channels-last feature maps (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::depthwise {

/// x: (images, height, width, channels), y: (images, out_height, out_width, channels), w:
/// (channels, kernel, kernel); channels in multiples of kWide, kernel 3, 5 or 7, stride 1 or 2.
struct Convolution {
  std::int64_t images, channels, height, width, out_height, out_width;
  std::int64_t pad_top, pad_left;
  int kernel, stride;
};

/// Whether there is a kernel for it.
bool takes(const Convolution& convolution);
/// `bias` may be null. x and y are aligned to 16 bytes. Sums in float32.
void launch(const Convolution& convolution, const ConstFloatView& x, const ConstFloatView& w,
            const ConstFloatView& bias, const FloatView& y, const CudaQueue& queue);

}  // namespace pipetrain::depthwise
