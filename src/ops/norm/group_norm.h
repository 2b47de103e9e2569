// Group normalization (Wu and He 2018): shared by its definitions and kernels. With as many groups
// as channels it is instance normalization (Ulyanov et al. 2016).
//
//   GroupNorm{groups, epsilon, …}(x, scale, bias) -> y, mean, inverse_std
//   GroupNormGrad{groups, …}(dy, x, scale, mean, inverse_std[, bias]) -> dx, dscale, dbias
//
//   x, y: (N, C, …)     scale, bias: (C)     mean, inverse_std: (N, groups)
//   dscale, dbias: (N, C), to be summed over the samples
//
// y = (x - mean) * inverse_std * scale + bias. Limits or an activation may follow, as they follow a
// BatchNorm (batch_norm.h); the gradient then takes the bias, too.
#pragma once

#include <span>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// x seen as (N, groups, width, positions).
struct GroupNormShape {
  std::int64_t samples = 0;
  std::int64_t channels = 0;
  std::int64_t positions = 0;
  std::int64_t groups = 0;
  double epsilon = 0;

  /// Error (kModel) where the groups do not divide the channels, or x has no elements.
  GroupNormShape(const Attributes& attributes, const Shape& x);
  /// Channels of a group.
  std::int64_t width() const { return channels / groups; }
  /// Elements of a group.
  double population() const { return static_cast<double>(width() * positions); }
};

std::span<const KernelEntry> group_norm_reference_kernels();
std::span<const KernelEntry> group_norm_cpu_kernels();

}  // namespace pipetrain
