// Weight gradients of convolutions of bfloat16 feature maps in blocks of 16 channels, with products
// of pairs of AVX-512: the pairs are positions that follow each other. Include it from *_cpu.cpp
// files and tests only.
#pragma once

#include <memory>

#include "ops/conv/tile_convolution_cpu.h"

namespace pipetrain {

/// The kernel of ConvWeightGrad (x, dy) -> dw and, unless null, the bias's gradient; an
/// AddingKernel.
std::unique_ptr<Kernel> make_pair_weight_gradient(const TileConvolution& shape,
                                                  const tiles::Instructions& instructions);

}  // namespace pipetrain
