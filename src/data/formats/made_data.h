// Generated data sets, for first steps and tests without a download.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/rows/raw_data.h"

namespace pipetrain {

/// Digits drawn from a 5 x 7 pixel font, turned, sheared, scaled, moved, bent and with noise; a
/// linear model gets some 86 % of them right, a small network 98 %. x: uint8 (samples, size,
/// size), y: uint8 (samples). Sample i is a pure function of (seed, size, i).
RawSplit make_glyphs(std::size_t samples, std::uint64_t seed, std::size_t size);

/// Two interleaved spirals of one and a half turns with noise. x: float32 (samples, 2), y: int64
/// (samples), classes 0 and 1 in turns.
RawSplit make_spirals(std::size_t samples, std::uint64_t seed);

}  // namespace pipetrain
