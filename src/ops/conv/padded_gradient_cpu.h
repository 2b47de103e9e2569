// Weight gradients of convolutions of bfloat16 feature maps in blocks of 16 channels, as products
// on tiles (ops/matmul/tile_worker_cpu.h), for windows of several taps and stride 1: a map is
// packed twice, not once for each tap. Include it from *_cpu.cpp files only.
#pragma once

#include <memory>

#include "ops/conv/tile_convolution_cpu.h"

namespace pipetrain {

/// Whether the zeros that it multiplies by cost less than it saves.
bool padded_gradient_pays(const TileConvolution& shape);

/// The kernel of ConvWeightGrad (x, dy) -> dw, an AddingKernel.
std::unique_ptr<Kernel> make_padded_gradient(const TileConvolution& shape,
                                             const tiles::Instructions& instructions);

}  // namespace pipetrain
