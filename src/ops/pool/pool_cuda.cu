// Average pooling: one thread per result, which reads all its inputs, so that no sum depends on
// timing.
#include "ops/cuda/grid_cuda.h"
#include "ops/pool/pool_lanes_cuda.h"

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

/// A group of lanes: inner offset, position, plane.
struct Group {
  std::int64_t inner, position, plane;
};
__device__ __forceinline__ Group group_of(std::int64_t g, std::int64_t groups,
                                          std::int64_t positions) {
  return {g % groups, g / groups % positions, g / groups / positions};
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

}  // namespace

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
