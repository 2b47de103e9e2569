// Convolutions of bfloat16 images with few channels and a stride, on tiles: the rows and columns
// between two windows become channels, so that the stride is 1 and 16 channels are nearly full.
//
//   x (N, 3, H, W), 7x7 windows, stride 2   ->   (N, 12 of 16, H/2, W/2), 4x4 windows, stride 1
//
// Include it from *_cpu.cpp files and tests only.
#pragma once

#include "ops/conv/tile_convolution_cpu.h"

namespace pipetrain {

struct TileImage {
  TileConvolution inner;  // over the map of 16 channels
  std::int64_t channels;  // of the image
  WindowAxis rows, columns;
};

/// The shape, if the channels times the strides fill at least half of 16.
std::optional<TileImage> tile_image(const ConvGeometry& geometry);

/// The kernel of Conv (x, w, bias or null) -> y; x is row-major, y in blocks of 16 channels.
std::unique_ptr<Kernel> make_tile_image_forward(const TileImage& shape,
                                                const tiles::Instructions& instructions);
/// The kernel of ConvWeightGrad (x, dy) -> dw, an AddingKernel.
std::unique_ptr<Kernel> make_tile_image_weight_gradient(const TileImage& shape,
                                                        const tiles::Instructions& instructions);

}  // namespace pipetrain
