// The inner loops of depthwise convolutions for vectors of 8 floats and, where there is AVX-512,
// of 16. Include it from *_cpu.cpp files only.
#pragma once

#include <cstdint>
#include <span>

#include "ops/conv/depthwise_cpu.h"
#include "ops/kernel/vector8_cpu.h"

namespace pipetrain::depthwise_rows {

using Tap = DepthwiseTap;
using SumTaps = void (*)(std::span<const Tap> taps, const float* from, std::int64_t step,
                         const float* weights, const float* start, float* to, std::int64_t to_step);

using SlideRows = void (*)(std::span<const Tap> rows, const float* from, std::int64_t weight_step,
                           const float* weights, const float* start, float* to);

/// A band of output rows for the weight gradient. Steps are in floats.
struct GradientBand {
  std::int64_t rows, columns;
  std::int64_t x_step, column_step;  // of x, from one output row or column to the next
  std::int64_t y_row;                // of dy, from row to row
  std::int64_t tap_row, tap_step;    // of x, from tap to tap
  std::int64_t sum_step;             // of the sums, from tap to tap, in vectors
  std::int64_t taps_of_row;          // of the whole window
};
using AddGradient = void (*)(const GradientBand& band, const float* x, const float* dy,
                             float* sums);

using SumPlane = void (*)(std::span<const Tap> taps, const float* from, std::int64_t row,
                          const float* weights, float start, float* to, std::int64_t to_row);

namespace narrow {
constexpr std::int64_t kLanes = 8;
using Vector = Vector8;
inline Vector load(const float* from) { return load8(from); }
inline Vector fill(float value) { return fill8(value); }
inline void store(float* to, Vector value) { store8(to, value); }
#define PIPETRAIN_DEPTHWISE_TARGET
#include "ops/conv/depthwise_loops_cpu.h"
#undef PIPETRAIN_DEPTHWISE_TARGET
}  // namespace narrow

namespace wide {
constexpr std::int64_t kLanes = 16;
using Vector = Vector16;
[[gnu::always_inline]] PIPETRAIN_AVX512 inline Vector load(const float* from) {
  return load16(from);
}
[[gnu::always_inline]] PIPETRAIN_AVX512 inline Vector fill(float value) { return fill16(value); }
[[gnu::always_inline]] PIPETRAIN_AVX512 inline void store(float* to, const Vector& value) {
  store16(to, value);
}
#define PIPETRAIN_DEPTHWISE_TARGET PIPETRAIN_AVX512
#include "ops/conv/depthwise_loops_cpu.h"
#undef PIPETRAIN_DEPTHWISE_TARGET
}  // namespace wide

/// Floats of the vectors that this machine has.
inline std::int64_t lanes() { return has_avx512() ? wide::kLanes : narrow::kLanes; }

}  // namespace pipetrain::depthwise_rows
