// Convolutions of bfloat16 feature maps in blocks of 16 channels and their input gradients, as
// products on tiles (ops/matmul/tile_worker_cpu.h), for windows of several taps and stride 1: a map
// is packed once, not once for each tap. Include it from *_cpu.cpp files only.
#pragma once

#include <memory>

#include "ops/conv/tile_convolution_cpu.h"

namespace pipetrain {

/// Whether the zeros that it multiplies by cost less than it saves.
bool padded_pass_pays(const TileConvolution& shape, bool input_gradient);

/// The kernel of Conv (x, w, bias or null) -> y, or of ConvInputGrad (dy, w) -> dx.
std::unique_ptr<Kernel> make_padded_pass(const TileConvolution& shape, bool input_gradient,
                                         const tiles::Instructions& instructions);

}  // namespace pipetrain
