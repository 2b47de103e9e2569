// Pooling: one thread per result, which reads all its inputs, so that no sum depends on timing.
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/pool/pool_launch_cuda.h"

namespace pipetrain::pool {
namespace {

/// Coordinates (three axes) of an index of a plane.
struct Place {
  std::int64_t at[3];
};
__device__ __forceinline__ Place place_of(std::int64_t i, std::int64_t middle, std::int64_t inner) {
  return {{i / inner / middle, i / inner % middle, i % inner}};
}

/// Calls visit(position in the input's plane) for the taps of a window inside the input, in order.
template <class Visit>
__device__ __forceinline__ void for_taps(const Pool& pool, const Place& window, Visit visit) {
  std::int64_t start[3];
  for (int d = 0; d < 3; ++d) start[d] = window.at[d] * pool.axes[d].stride - pool.axes[d].pad;
  for (std::int64_t a = 0; a < pool.axes[0].kernel; ++a) {
    const std::int64_t i = start[0] + a * pool.axes[0].dilation;
    if (i < 0 || i >= pool.axes[0].input) continue;
    for (std::int64_t b = 0; b < pool.axes[1].kernel; ++b) {
      const std::int64_t j = start[1] + b * pool.axes[1].dilation;
      if (j < 0 || j >= pool.axes[1].input) continue;
      for (std::int64_t c = 0; c < pool.axes[2].kernel; ++c) {
        const std::int64_t k = start[2] + c * pool.axes[2].dilation;
        if (k < 0 || k >= pool.axes[2].input) continue;
        visit((i * pool.axes[1].input + j) * pool.axes[2].input + k);
      }
    }
  }
}

/// The window that has this tap at a position of one axis; -1 when there is none.
__device__ __forceinline__ std::int64_t window_at(const PoolAxis& axis, std::int64_t position,
                                                  std::int64_t tap) {
  const std::int64_t begin = position + axis.pad - tap * axis.dilation;
  if (begin < 0 || begin % axis.stride != 0) return -1;
  return begin / axis.stride < axis.output ? begin / axis.stride : -1;
}

/// Calls visit(index in the output's plane) for the windows with a tap at a position.
template <class Visit>
__device__ __forceinline__ void for_windows(const Pool& pool, const Place& position, Visit visit) {
  for (std::int64_t a = pool.axes[0].kernel - 1; a >= 0; --a) {
    const std::int64_t i = window_at(pool.axes[0], position.at[0], a);
    if (i < 0) continue;
    for (std::int64_t b = pool.axes[1].kernel - 1; b >= 0; --b) {
      const std::int64_t j = window_at(pool.axes[1], position.at[1], b);
      if (j < 0) continue;
      for (std::int64_t c = pool.axes[2].kernel - 1; c >= 0; --c) {
        const std::int64_t k = window_at(pool.axes[2], position.at[2], c);
        if (k >= 0) visit(Place{{i, j, k}});
      }
    }
  }
}

__device__ __forceinline__ std::int64_t inputs_of(const Pool& pool) {
  return pool.axes[0].input * pool.axes[1].input * pool.axes[2].input;
}
__device__ __forceinline__ std::int64_t outputs_of(const Pool& pool) {
  return pool.axes[0].output * pool.axes[1].output * pool.axes[2].output;
}
__device__ __forceinline__ std::int64_t index_of(const Pool& pool, const Place& window) {
  return (window.at[0] * pool.axes[1].output + window.at[1]) * pool.axes[2].output + window.at[2];
}

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

/// A group of lanes: inner offset, position, plane.
struct Group {
  std::int64_t inner, position, plane;
};
__device__ __forceinline__ Group group_of(std::int64_t g, std::int64_t groups,
                                          std::int64_t positions) {
  return {g % groups, g / groups % positions, g / groups / positions};
}

template <int kLanes>
__global__ void max_pool(Pool pool, ConstFloatView x, FloatView y, std::int32_t* index) {
  const std::int64_t inputs = inputs_of(pool), outputs = outputs_of(pool);
  const std::int64_t groups = pool.inner / kLanes, count = pool.planes * outputs * groups;
  for (std::int64_t g = first_of_thread(); g < count; g += step_of_thread()) {
    const Group o = group_of(g, groups, outputs);
    Lanes<kLanes> best;
    std::int64_t place[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      best.values[l] = -std::numeric_limits<float>::infinity();
      place[l] = -1;
    }
    for_taps(pool, place_of(o.position, pool.axes[1].output, pool.axes[2].output),
             [&](std::int64_t i) {
               const Lanes<kLanes> here =
                   load_lanes<kLanes>(x, (o.plane * inputs + i) * groups + o.inner);
               for (int l = 0; l < kLanes; ++l) {
                 const float value = here.values[l];
                 if (place[l] >= 0 && !(value > best.values[l]) && value == value) continue;
                 best.values[l] = value;
                 place[l] = i;
               }
             });
    store_lanes<kLanes>(y, g, best);
    for (int l = 0; index && l < kLanes; ++l)
      index[g * kLanes + l] = static_cast<std::int32_t>(place[l]);
  }
}

template <int kLanes>
__global__ void max_pool_gradient(Pool pool, ConstFloatView dy, const std::int32_t* index,
                                  FloatView dx) {
  const std::int64_t inputs = inputs_of(pool), outputs = outputs_of(pool);
  const std::int64_t groups = pool.inner / kLanes, count = pool.planes * inputs * groups;
  for (std::int64_t g = first_of_thread(); g < count; g += step_of_thread()) {
    const Group i = group_of(g, groups, inputs);
    Lanes<kLanes> sum{};
    for_windows(pool, place_of(i.position, pool.axes[1].input, pool.axes[2].input),
                [&](const Place& window) {
                  const std::int64_t o =
                      (i.plane * outputs + index_of(pool, window)) * groups + i.inner;
                  const Lanes<kLanes> here = load_lanes<kLanes>(dy, o);
                  for (int l = 0; l < kLanes; ++l) {
                    if (index[o * kLanes + l] == i.position) sum.values[l] += here.values[l];
                  }
                });
    store_lanes<kLanes>(dx, g, sum);
  }
}

/// 1 / (positions that a window averages over)
__device__ __forceinline__ float share_of(const Pool& pool, const Place& window) {
  float share = 1;
  for (int d = 0; d < 3; ++d) {
    const PoolAxis& axis = pool.axes[d];
    int count = 0;
    for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
      const std::int64_t at = window.at[d] * axis.stride - axis.pad + tap * axis.dilation;
      count += at >= axis.count_begin && at < axis.count_end;
    }
    share /= static_cast<float>(count < 1 ? 1 : count);
  }
  return share;
}

template <int kLanes>
__global__ void average_pool(Pool pool, ConstFloatView x, FloatView y) {
  const std::int64_t inputs = inputs_of(pool), outputs = outputs_of(pool);
  const std::int64_t groups = pool.inner / kLanes, count = pool.planes * outputs * groups;
  for (std::int64_t g = first_of_thread(); g < count; g += step_of_thread()) {
    const Group o = group_of(g, groups, outputs);
    const Place window = place_of(o.position, pool.axes[1].output, pool.axes[2].output);
    Lanes<kLanes> sum{};
    for_taps(pool, window, [&](std::int64_t i) {
      const Lanes<kLanes> here = load_lanes<kLanes>(x, (o.plane * inputs + i) * groups + o.inner);
      for (int l = 0; l < kLanes; ++l) sum.values[l] += here.values[l];
    });
    const float share = share_of(pool, window);
    for (int l = 0; l < kLanes; ++l) sum.values[l] *= share;
    store_lanes<kLanes>(y, g, sum);
  }
}

template <int kLanes>
__global__ void average_pool_gradient(Pool pool, ConstFloatView dy, FloatView dx) {
  const std::int64_t inputs = inputs_of(pool), outputs = outputs_of(pool);
  const std::int64_t groups = pool.inner / kLanes, count = pool.planes * inputs * groups;
  for (std::int64_t g = first_of_thread(); g < count; g += step_of_thread()) {
    const Group i = group_of(g, groups, inputs);
    Lanes<kLanes> sum{};
    for_windows(pool, place_of(i.position, pool.axes[1].input, pool.axes[2].input),
                [&](const Place& window) {
                  const Lanes<kLanes> here = load_lanes<kLanes>(
                      dy, (i.plane * outputs + index_of(pool, window)) * groups + i.inner);
                  const float share = share_of(pool, window);
                  for (int l = 0; l < kLanes; ++l) sum.values[l] += here.values[l] * share;
                });
    store_lanes<kLanes>(dx, g, sum);
  }
}

std::int64_t count_of(const Pool& pool, bool inputs) {
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

}  // namespace

void launch_max_pool(const Pool& pool, const ConstFloatView& x, const FloatView& y,
                     std::int32_t* index, const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/false), x, y, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(max_pool<decltype(lanes)::value>, blocks_for(groups, queue), kBlock, queue.stream,
              pool, x, y, index);
  });
}

void launch_max_pool_gradient(const Pool& pool, const ConstFloatView& dy, const std::int32_t* index,
                              const FloatView& dx, const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/true), dy, dx, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(max_pool_gradient<decltype(lanes)::value>, blocks_for(groups, queue), kBlock,
              queue.stream, pool, dy, index, dx);
  });
}

void launch_average_pool(const Pool& pool, const ConstFloatView& x, const FloatView& y,
                         const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/false), x, y, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(average_pool<decltype(lanes)::value>, blocks_for(groups, queue), kBlock, queue.stream,
              pool, x, y);
  });
}

void launch_average_pool_gradient(const Pool& pool, const ConstFloatView& dy, const FloatView& dx,
                                  const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/true), dy, dx, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(average_pool_gradient<decltype(lanes)::value>, blocks_for(groups, queue), kBlock,
              queue.stream, pool, dy, dx);
  });
}

}  // namespace pipetrain::pool
