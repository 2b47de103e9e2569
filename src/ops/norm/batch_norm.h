// Batch normalization: shared by its definitions and kernels.
//
//   x: (N, C, …)     scale, bias, mean, variance: (C)     y = (x - mean) / sqrt(variance + epsilon)
//   * scale + bias
//
// With the attributes clip_min, clip_max y is clipped: a following Relu or Clip that passes/fuse.h
// has fused. A residual, shaped like x, is added before that (passes/fuse_batch_norm_sums.h).
// With the attribute activation, the name of an element-wise operator whose attributes the node
// has, too, that is applied to y. It stands alone: without limits and residual.
#pragma once

#include <span>
#include <string>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// x seen as (N, C, positions).
struct BatchNormShape {
  std::int64_t images = 0;
  std::int64_t channels = 0;
  std::int64_t positions = 0;

  explicit BatchNormShape(const Shape& x)
      : images(x[0]), channels(x[1]), positions(x.count(2, x.rank())) {}
  /// Number of elements per channel.
  double population() const { return static_cast<double>(images * positions); }
};

double batch_norm_epsilon(const Attributes& attributes);

/// The limits of y, and the range in which the gradient passes.
struct BatchNormLimits {
  double low, high;
  double passes_from;  // `low`, or the next larger float for a Relu, whose gradient at 0 is 0

  explicit BatchNormLimits(const Attributes& attributes);
  bool any() const;
};

/// The operator that is applied to y; empty: none.
std::string batch_norm_activation(const Attributes& attributes);

std::span<const KernelEntry> batch_norm_reference_kernels();
std::span<const KernelEntry> batch_norm_cpu_kernels();

}  // namespace pipetrain
