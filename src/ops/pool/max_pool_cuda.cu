// Maximum pooling: one thread per result, or per two adjacent ones of the gradient, which reads all
// that they depend on, so that no sum depends on timing. Several loads are in flight; coordinates
// cost a 32-bit multiplication each.
//
// Bytes for ResNet-50 with 64 images, windows of 3 x 3 with stride 2 (estimates, H200 at 4.3 TB/s):
// x or dx (64, 64, 112, 112) of bfloat16 is 103 MB, y or dy 26 MB, the positions of the maxima
// 51 MB; together 180 MB, 42 us for each of the two kernels. Measured on an H200 before, with
// 64-bit coordinates and divisions for every tap: 131 us and 345 us.
#include <limits>

#include "ops/cuda/alike_cuda.h"
#include "ops/cuda/divider_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/pool/pool_lanes_cuda.h"

namespace pipetrain::pool {
namespace {

/// Taps, or windows, of a row that a thread loads at once.
constexpr int kTaps = 3;
constexpr int kWindows = 2;
/// Blocks that shall fit a multiprocessor: 80 registers for each thread.
constexpr int kResident = 3;
/// Adjacent positions of a row whose gradients a thread computes.
constexpr int kPositions = 2;

/// Int: std::int32_t where no plane, axis or number of groups exceeds it, or std::int64_t.
template <class Int>
struct MaxAxis {
  Int input, kernel, stride, dilation, pad, output;
};
template <class Int>
struct MaxPool {
  MaxAxis<Int> axes[3];
  Int groups;   // of lanes along the inner extent
  Int inputs;   // of a plane
  Int outputs;  // of a plane
  std::int64_t count;
  Divider by_groups, by_axis[3];  // of the grid that threads run over
  Divider by_stride[3];
};

template <class Int>
using IndexOf = std::conditional_t<sizeof(Int) == 4, std::uint32_t, std::int64_t>;

/// Divides `left` and returns the rest.
template <class Int>
__device__ __forceinline__ Int take(const Divider& by, IndexOf<Int>& left) {
  const IndexOf<Int> quotient = by.quotient(left);
  const auto rest = static_cast<Int>(by.rest(left, quotient));
  left = quotient;
  return rest;
}

/// Where thread g of the grid works: group of lanes, coordinates, plane.
template <class Int>
struct Spot {
  Int inner, at[3];
  std::int64_t plane;
};
template <class Int>
__device__ __forceinline__ Spot<Int> spot_of(const MaxPool<Int>& pool, std::int64_t g) {
  auto left = static_cast<IndexOf<Int>>(g);
  Spot<Int> spot;
  spot.inner = take<Int>(pool.by_groups, left);
  for (int d = 2; d >= 0; --d) spot.at[d] = take<Int>(pool.by_axis[d], left);
  spot.plane = left;
  return spot;
}

template <int kLanes>
struct Positions {
  std::int32_t values[kLanes];
};
template <int kLanes>
__device__ __forceinline__ Positions<kLanes> load_positions(const std::int32_t* from,
                                                            std::int64_t group) {
  if constexpr (kLanes == 1) {
    return {{from[group]}};
  } else {
    struct alignas(16) Four {
      std::int32_t values[4];
    };
    const auto* at = reinterpret_cast<const Four*>(from) + 2 * group;
    const Four low = at[0], high = at[1];
    Positions<kLanes> out;
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      out.values[l] = low.values[l];
      out.values[4 + l] = high.values[l];
    }
    return out;
  }
}
template <int kLanes>
__device__ __forceinline__ void store_positions(std::int32_t* to, std::int64_t group,
                                                const Positions<kLanes>& from) {
  if constexpr (kLanes == 1) {
    to[group] = from.values[0];
  } else {
    struct alignas(16) Four {
      std::int32_t values[4];
    };
    Four low, high;
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      low.values[l] = from.values[l];
      high.values[l] = from.values[4 + l];
    }
    auto* at = reinterpret_cast<Four*>(to) + 2 * group;
    at[0] = low;
    at[1] = high;
  }
}

/// The maximum of the taps so far and its position; -1 before the first tap.
template <int kLanes>
struct Best {
  Lanes<kLanes> values;
  Positions<kLanes> places;
};

/// The taps of one row of a window, which begins at column `start`.
template <int kLanes, class Int>
__device__ __forceinline__ void take_row(const MaxPool<Int>& pool, const ConstFloatView& x,
                                         std::int64_t plane, Int row, Int start,
                                         Best<kLanes>& best) {
  const MaxAxis<Int>& axis = pool.axes[2];
  for (Int first = 0; first < axis.kernel; first += kTaps) {
    Lanes<kLanes> here[kTaps];
    bool inside[kTaps];
    Int place[kTaps];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const Int column = start + (first + t) * axis.dilation;
      inside[t] = first + t < axis.kernel && column >= 0 && column < axis.input;
      place[t] = row + column;
      if (inside[t]) here[t] = load_lanes<kLanes>(x, plane + std::int64_t{place[t]} * pool.groups);
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      if (!inside[t]) continue;
#pragma unroll
      for (int l = 0; l < kLanes; ++l) {
        const float value = here[t].values[l];
        if (best.places.values[l] >= 0 && !(value > best.values.values[l]) && value == value)
          continue;
        best.values.values[l] = value;
        best.places.values[l] = static_cast<std::int32_t>(place[t]);
      }
    }
  }
}

template <class Types, int kLanes, class Int>
__global__ void __launch_bounds__(kBlock, kResident)
    max_pool(Types, std::integral_constant<int, kLanes>, PT_LARGE(MaxPool<Int>) pool,
             ConstFloatView stored_x, FloatView stored_y, std::int32_t* index) {
  const ConstFloatView x = Types::of(stored_x);
  const FloatView y = Types::of(stored_y);
  for (std::int64_t g = first_of_thread(); g < pool.count; g += step_of_thread()) {
    const Spot<Int> spot = spot_of(pool, g);
    const std::int64_t plane = spot.plane * pool.inputs * pool.groups + spot.inner;
    Int start[3];
#pragma unroll
    for (int d = 0; d < 3; ++d) start[d] = spot.at[d] * pool.axes[d].stride - pool.axes[d].pad;
    Best<kLanes> best;
#pragma unroll
    for (int l = 0; l < kLanes; ++l) {
      best.values.values[l] = -std::numeric_limits<float>::infinity();
      best.places.values[l] = -1;
    }
    for (Int a = 0; a < pool.axes[0].kernel; ++a) {
      const Int i = start[0] + a * pool.axes[0].dilation;
      if (i < 0 || i >= pool.axes[0].input) continue;
      for (Int b = 0; b < pool.axes[1].kernel; ++b) {
        const Int j = start[1] + b * pool.axes[1].dilation;
        if (j < 0 || j >= pool.axes[1].input) continue;
        take_row<kLanes>(pool, x, plane, (i * pool.axes[1].input + j) * pool.axes[2].input,
                         start[2], best);
      }
    }
    store_lanes<kLanes>(y, g, best.values);
    if (index) store_positions<kLanes>(index, g, best.places);
  }
}

/// The windows [first, end) of an axis that may contain one of `count` positions from `position`
/// on.
template <class Int>
struct Range {
  Int first, end;
};
template <class Int>
__device__ __forceinline__ Range<Int> windows_of(const MaxPool<Int>& pool, int d, Int position,
                                                 int count) {
  const MaxAxis<Int>& axis = pool.axes[d];
  const Int last = position + axis.pad;
  const Int before = last - (axis.kernel - 1) * axis.dilation + axis.stride - 1;
  const auto quotient = [&](Int n) {
    return static_cast<Int>(pool.by_stride[d].quotient(static_cast<IndexOf<Int>>(n)));
  };
  const Int end = last + count > 0 ? quotient(last + count - 1) + 1 : 0;
  return {before < 0 ? 0 : quotient(before), end < axis.output ? end : axis.output};
}

/// Adds the gradients of the windows of one row of windows, from index `row` in the plane on.
template <int kLanes, class Int>
__device__ __forceinline__ void add_row(const MaxPool<Int>& pool, const ConstFloatView& dy,
                                        const std::int32_t* index, std::int64_t plane,
                                        const Range<Int>& range, std::int32_t position,
                                        Lanes<kLanes> (&sums)[kPositions]) {
  for (Int first = range.first; first < range.end; first += kWindows) {
    Lanes<kLanes> here[kWindows];
    Positions<kLanes> maxima[kWindows];
#pragma unroll
    for (int w = 0; w < kWindows; ++w) {
      if (first + w >= range.end) continue;
      const std::int64_t group = plane + std::int64_t{first + w} * pool.groups;
      maxima[w] = load_positions<kLanes>(index, group);
      here[w] = load_lanes<kLanes>(dy, group);
    }
#pragma unroll
    for (int w = 0; w < kWindows; ++w) {
      if (first + w >= range.end) continue;
#pragma unroll
      for (int p = 0; p < kPositions; ++p) {
#pragma unroll
        for (int l = 0; l < kLanes; ++l) {
          if (maxima[w].values[l] == position + p) sums[p].values[l] += here[w].values[l];
        }
      }
    }
  }
}

/// Threads run over pairs of positions. A window whose maximum lies at a position contains it, so
/// that dilated windows need no other check.
template <class Types, int kLanes, class Int>
__global__ void __launch_bounds__(kBlock, kResident)
    max_pool_gradient(Types, std::integral_constant<int, kLanes>, PT_LARGE(MaxPool<Int>) pool,
                      ConstFloatView stored_dy, const std::int32_t* index, FloatView stored_dx) {
  const ConstFloatView dy = Types::of(stored_dy);
  const FloatView dx = Types::of(stored_dx);
  for (std::int64_t g = first_of_thread(); g < pool.count; g += step_of_thread()) {
    const Spot<Int> spot = spot_of(pool, g);
    const Int column = spot.at[2] * kPositions;
    const Range<Int> planes = windows_of(pool, 0, spot.at[0], 1);
    const Range<Int> rows = windows_of(pool, 1, spot.at[1], 1);
    const Range<Int> columns = windows_of(pool, 2, column, kPositions);
    const Int position =
        (spot.at[0] * pool.axes[1].input + spot.at[1]) * pool.axes[2].input + column;
    const std::int64_t plane = spot.plane * pool.outputs * pool.groups + spot.inner;
    Lanes<kLanes> sums[kPositions] = {};
    for (Int a = planes.first; a < planes.end; ++a) {
      for (Int b = rows.first; b < rows.end; ++b) {
        const Int row = (a * pool.axes[1].output + b) * pool.axes[2].output;
        add_row<kLanes>(pool, dy, index, plane + std::int64_t{row} * pool.groups, columns,
                        static_cast<std::int32_t>(position), sums);
      }
    }
    const std::int64_t to = (spot.plane * pool.inputs + position) * pool.groups + spot.inner;
#pragma unroll
    for (int p = 0; p < kPositions; ++p) {
      if (column + p < pool.axes[2].input) store_lanes<kLanes>(dx, to + p * pool.groups, sums[p]);
    }
  }
}

/// Whether 32-bit coordinates and indices suffice for a plane and for the grid.
bool is_small(const Pool& pool) {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  for (const PoolAxis& axis : pool.axes) {
    for (const std::int64_t extent :
         {axis.input, axis.kernel, axis.stride, axis.dilation, axis.pad, axis.output}) {
      if (extent >= kMost) return false;
    }
    if (axis.kernel * axis.dilation >= kMost || (axis.output + 1) * axis.stride >= kMost)
      return false;
  }
  return count_of(pool, /*inputs=*/true) < kMost * 2 &&
         count_of(pool, /*inputs=*/false) < kMost * 2;
}

/// For threads over outputs, or over pairs of inputs.
template <class Int>
MaxPool<Int> with_grid(const Pool& pool, int lanes, bool inputs) {
  MaxPool<Int> out{};
  out.inputs = out.outputs = 1;
  for (int d = 0; d < 3; ++d) {
    const PoolAxis& axis = pool.axes[d];
    out.axes[d] = {static_cast<Int>(axis.input),  static_cast<Int>(axis.kernel),
                   static_cast<Int>(axis.stride), static_cast<Int>(axis.dilation),
                   static_cast<Int>(axis.pad),    static_cast<Int>(axis.output)};
    out.inputs *= out.axes[d].input;
    out.outputs *= out.axes[d].output;
    out.by_stride[d] = Divider(axis.stride);
  }
  out.groups = static_cast<Int>(pool.inner / lanes);
  std::int64_t sizes[3] = {pool.axes[0].output, pool.axes[1].output, pool.axes[2].output};
  if (inputs) {
    sizes[0] = pool.axes[0].input;
    sizes[1] = pool.axes[1].input;
    sizes[2] = (pool.axes[2].input + kPositions - 1) / kPositions;
  }
  out.count = pool.planes * out.groups;
  out.by_groups = Divider(out.groups);
  for (int d = 0; d < 3; ++d) {
    out.by_axis[d] = Divider(sizes[d]);
    out.count *= sizes[d];
  }
  return out;
}

/// Several rounds of the device, so that none waits long for the last blocks.
unsigned blocks_of(std::int64_t threads, const CudaQueue& queue) {
  const std::int64_t wanted = (threads + kBlock - 1) / kBlock;
  const std::int64_t most = std::int64_t{64} * queue.multiprocessors;
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

/// Calls run(types, lanes, pool) for the operands of a kernel over outputs, or over inputs.
template <class Run>
void with_pool(const Pool& pool, bool inputs, const ConstFloatView& a, const ConstFloatView& b,
               const std::int32_t* index, const Run& run) {
  const bool wide =
      pool.inner % kWide == 0 && moves_wide(a.data) && moves_wide(b.data) && moves_wide(index);
  if (count_of(pool, inputs) == 0) return;
  if (!is_small(pool)) {
    run(Mixed(), std::integral_constant<int, 1>(), with_grid<std::int64_t>(pool, 1, inputs));
  } else if (!wide) {
    run(Mixed(), std::integral_constant<int, 1>(), with_grid<std::int32_t>(pool, 1, inputs));
  } else {
    const auto grid = with_grid<std::int32_t>(pool, kWide, inputs);
    with_types(a.stored, a.stored, b.stored,
               [&](auto types) { run(types, std::integral_constant<int, kWide>(), grid); });
  }
}

}  // namespace

void launch_max_pool(const Pool& pool, const ConstFloatView& x, const FloatView& y,
                     std::int32_t* index, const CudaQueue& queue) {
  with_pool(pool, /*inputs=*/false, x, y, index, [&](auto types, auto lanes, const auto& grid) {
    PT_LAUNCH(max_pool, blocks_of(grid.count, queue), kBlock, queue.stream, types, lanes, grid, x,
              y, index);
  });
}

void launch_max_pool_gradient(const Pool& pool, const ConstFloatView& dy, const std::int32_t* index,
                              const FloatView& dx, const CudaQueue& queue) {
  with_pool(pool, /*inputs=*/true, dy, dx, index, [&](auto types, auto lanes, const auto& grid) {
    PT_LAUNCH(max_pool_gradient, blocks_of(grid.count, queue), kBlock, queue.stream, types, lanes,
              grid, dy, index, dx);
  });
}

}  // namespace pipetrain::pool
