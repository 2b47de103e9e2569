// GridSample: interpolates images at the positions of a grid.
//
//   GridSample{mode, padding_mode, align_corners}(x, grid) -> y
//   GridSampleGrad{…}(dy, x, grid) -> dx, dgrid
//   x (N, C, spatial…), grid (N, positions…, r) in [-1, 1] with the last spatial axis first,
//   y (N, C, positions…); r = 1 to 3 spatial axes. Modes linear, cubic (Keys 1981, a = -0.75) and
//   nearest; padding zeros, border or reflection.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "graph/op.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

enum class GridMode : std::uint8_t { kLinear, kNearest, kCubic };
enum class GridPadding : std::uint8_t { kZeros, kBorder, kReflection };

struct GridGeometry {
  GridMode mode = GridMode::kLinear;
  GridPadding padding = GridPadding::kZeros;
  bool align_corners = false;
  std::int64_t batch = 1;
  std::int64_t channels = 1;
  std::int64_t positions = 1;  // of one sample
  std::int64_t rank = 2;
  std::int64_t extent[3] = {1, 1, 1};  // spatial axes of x
  std::int64_t stride[3] = {1, 1, 1};
  std::int64_t plane = 1;  // elements of one channel of x
  Shape output;
};

/// Error (kModel) when attributes and shapes are incompatible.
GridGeometry grid_geometry(const Attributes& attributes, const Shape& x, const Shape& grid);

/// DeformConv in terms of GridSample and MatMul.
void import_deform_conv(ImportContext& context);

std::span<const KernelEntry> grid_sample_reference_kernels();
std::span<const KernelEntry> grid_sample_cpu_kernels();

}  // namespace pipetrain
