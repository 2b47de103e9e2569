// Convolutions of bfloat16 feature maps in blocks of 16 channels, as products on tiles
// (ops/matmul/tile_worker_cpu.h). Rows of a product are positions of all samples, or they are what
// is summed over; the taps of a window are gathered while an operand is packed, or, with stride 1,
// share one packed map with zeros between its rows (padded_pass_cpu.h, padded_gradient_cpu.h).
// Include it from *_cpu.cpp files and tests only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/conv/conv.h"
#include "ops/matmul/tile_instructions_cpu.h"

namespace pipetrain {

/// x (batch, inputs, rows, columns), y (batch, outputs, rows, columns) and the windows of two axes.
struct TileConvolution {
  std::int64_t batch, inputs, outputs;
  WindowAxis rows, columns;

  std::int64_t taps() const { return rows.kernel * columns.kernel; }
};

/// The shape, if channels are whole blocks, in one group.
std::optional<TileConvolution> tile_convolution(const ConvGeometry& geometry);

/// The kernel of Conv (x, w, bias or null) -> y, or of ConvInputGrad (dy, w) -> dx.
std::unique_ptr<Kernel> make_tile_pass(const TileConvolution& shape, bool input_gradient,
                                       const tiles::Instructions& instructions);

/// Orders weights (outputs, inputs, taps): (outputs, taps, inputs), or for an input gradient (taps,
/// outputs, inputs). `order` has the taps as they follow each other there.
void order_weights(const TileConvolution& shape, bool input_gradient,
                   const std::vector<std::int64_t>& order, const std::uint16_t* w,
                   std::uint16_t* to, int threads);

/// Writes gradients of weights (outputs, taps, inputs) to `dw` (outputs, inputs, taps), or adds
/// them.
void store_in_order(const TileConvolution& shape, const float* gradients, bool add, float* dw,
                    int threads);

/// The kernel of ConvWeightGrad (x, dy) -> dw, an AddingKernel.
std::unique_ptr<Kernel> make_tile_weight_gradient(const TileConvolution& shape,
                                                  const tiles::Instructions& instructions);

}  // namespace pipetrain
