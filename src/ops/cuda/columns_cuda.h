// Adjacent elements of a row that a thread loads together, for .cu files.
#pragma once

#include <cstdint>

#include "ops/cuda/stored_access_cuda.h"

namespace pipetrain {

/// kWidth floats: one, or kWide that are loaded and stored at once at offsets that are multiples of
/// kWide.
template <int kWidth>
struct Columns {
  static_assert(kWidth == 1 || kWidth == kWide);
  float values[kWidth];

  __device__ static Columns of(float value) {
    Columns out;
    for (int i = 0; i < kWidth; ++i) out.values[i] = value;
    return out;
  }
  __device__ void load(const ConstFloatView& from, std::int64_t element) {
    if constexpr (kWidth == 1) {
      values[0] = from[element];
    } else {
      const WideFloats wide = load_wide(from, element / kWide);
      for (int i = 0; i < kWidth; ++i) values[i] = wide.values[i];
    }
  }
  __device__ void store(const FloatView& to, std::int64_t element) const {
    if constexpr (kWidth == 1) {
      to[element] = values[0];
    } else {
      WideFloats wide;
      for (int i = 0; i < kWidth; ++i) wide.values[i] = values[i];
      store_wide(to, element / kWide, wide);
    }
  }
  template <class F>
  __device__ void combine(F f, const Columns& other) {
    for (int i = 0; i < kWidth; ++i) values[i] = f(values[i], other.values[i]);
  }
};

}  // namespace pipetrain
