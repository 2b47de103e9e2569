// Pooling kernels process one or eight adjacent inner elements at once; for .cu files.
#pragma once

#include <type_traits>

#include "ops/cuda/stored_access_cuda.h"
#include "ops/pool/pool_launch_cuda.h"

namespace pipetrain::pool {

/// A thread processes kLanes adjacent inner elements at once: 1 or kWide.
template <int kLanes>
struct Lanes {
  float values[kLanes];
};
template <int kLanes>
__device__ __forceinline__ Lanes<kLanes> load_lanes(const ConstFloatView& from,
                                                    std::int64_t group) {
  Lanes<kLanes> out;
  if constexpr (kLanes == kWide) {
    const WideFloats wide = load_wide(from, group);
    for (int l = 0; l < kLanes; ++l) out.values[l] = wide.values[l];
  } else {
    out.values[0] = from[group];
  }
  return out;
}
template <int kLanes>
__device__ __forceinline__ void store_lanes(const FloatView& to, std::int64_t group,
                                            const Lanes<kLanes>& from) {
  if constexpr (kLanes == kWide) {
    WideFloats wide;
    for (int l = 0; l < kLanes; ++l) wide.values[l] = from.values[l];
    store_wide(to, group, wide);
  } else {
    to[group] = from.values[0];
  }
}

inline std::int64_t count_of(const Pool& pool, bool inputs) {
  std::int64_t count = pool.planes * pool.inner;
  for (const PoolAxis& axis : pool.axes) count *= inputs ? axis.input : axis.output;
  return count;
}

/// Calls run(lanes, groups) with as many lanes as the inner extent and the alignment allow.
template <class Run>
void with_lanes(const Pool& pool, std::int64_t count, const ConstFloatView& a,
                const ConstFloatView& b, Run run) {
  if (count == 0) return;
  if (pool.inner % kWide == 0 && moves_wide(a.data) && moves_wide(b.data)) {
    run(std::integral_constant<int, kWide>(), count / kWide);
  } else {
    run(std::integral_constant<int, 1>(), count);
  }
}

}  // namespace pipetrain::pool
