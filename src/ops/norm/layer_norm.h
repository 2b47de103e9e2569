// Layer normalisation: shared by the definition and the kernels.
//
//   LayerNorm{axis, epsilon}(x[, scale[, bias]]) -> y, mean, inverse_std
//   x, y: (rows…, N…), normalised over the axes from `axis` on     scale, bias: (N…)
//   mean, inverse_std: (rows…)
#pragma once

#include <span>

#include "ops/kernel/kernel.h"

namespace pipetrain {

struct LayerNormGeometry {
  std::int64_t rows = 1;
  std::int64_t width = 1;  // normalised elements per row
  double epsilon = 0;
  Shape row_shape;
  Shape scale_shape;
};

/// Error (kModel) when attribute `axis` is outside the shape or no elements are left to normalise.
LayerNormGeometry layer_norm_geometry(const Attributes& attributes, const Shape& x);

std::span<const KernelEntry> layer_norm_reference_kernels();
std::span<const KernelEntry> layer_norm_cpu_kernels();

}  // namespace pipetrain
