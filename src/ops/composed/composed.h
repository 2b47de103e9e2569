// Operators that are composed of others, by file.
#pragma once

#include <span>

#include "graph/builder.h"
#include "ops/registry/registry.h"

namespace pipetrain::composed {

/// Sums, norms and comparisons: LpNormalization, MeanVarianceNormalization, LRN, Hardmax, OneHot …
std::span<const ImportRule> arithmetic_imports();
/// Rearrangements: CenterCropPad, Col2Im, Compress, ReverseSequence, MaxUnpool, AffineGrid.
std::span<const ImportRule> movement_imports();
/// Fourier transforms: DFT, STFT.
std::span<const ImportRule> spectrum_imports();

/// x²; of floats a power, which mixed precision keeps in float32, where a product would overflow.
ValueId square(GraphBuilder& builder, ValueId x);
/// |x|^p, element by element.
ValueId absolute_power(GraphBuilder& builder, ValueId x, double p);
/// s^(1/p) for s >= 0. The gradient is undefined at s = 0; it is set to 0 there instead of
/// infinity.
ValueId root(GraphBuilder& builder, ValueId s, double p);

}  // namespace pipetrain::composed
