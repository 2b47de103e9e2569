// Pooling: a thread for each result, which reads all that belongs to it, so that no sum depends on
// timing. Batch normalization: a block for each channel.
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/grid_cuda.h"
#include "ops/spatial_launch_cuda.h"
#include "ops/stored_access_cuda.h"

namespace pipetrain::spatial {
namespace {

/// Place in three axes of an index of a plane.
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

/// The window whose tap lies at a position of one axis; -1 when there is none.
__device__ __forceinline__ std::int64_t window_at(const PoolAxis& axis, std::int64_t position,
                                                  std::int64_t tap) {
  const std::int64_t begin = position + axis.pad - tap * axis.dilation;
  if (begin < 0 || begin % axis.stride != 0) return -1;
  return begin / axis.stride < axis.output ? begin / axis.stride : -1;
}

/// Calls visit(window's place in the output's plane) for the windows with a tap at a position.
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

/// A thread works on kLanes neighbours among the inner ones at once: 1 or kWide.
template <int kLanes>
struct Lanes {
  float values[kLanes];
};
template <int kLanes>
__device__ __forceinline__ Lanes<kLanes> load_lanes(const Numbers& from, std::int64_t group) {
  Lanes<kLanes> out;
  if constexpr (kLanes == kWide) {
    const WideNumbers wide = load_wide(from, group);
    for (int l = 0; l < kLanes; ++l) out.values[l] = wide.values[l];
  } else {
    out.values[0] = from[group];
  }
  return out;
}
template <int kLanes>
__device__ __forceinline__ void store_lanes(const Places& to, std::int64_t group,
                                            const Lanes<kLanes>& from) {
  if constexpr (kLanes == kWide) {
    WideNumbers wide;
    for (int l = 0; l < kLanes; ++l) wide.values[l] = from.values[l];
    store_wide(to, group, wide);
  } else {
    to[group] = from.values[0];
  }
}

/// A group of lanes: which of the inner ones, which position, which plane.
struct Group {
  std::int64_t inner, position, plane;
};
__device__ __forceinline__ Group group_of(std::int64_t g, std::int64_t groups,
                                          std::int64_t positions) {
  return {g % groups, g / groups % positions, g / groups / positions};
}

template <int kLanes>
__global__ void max_pool(Pool pool, Numbers x, Places y, std::int32_t* index) {
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
__global__ void max_pool_gradient(Pool pool, Numbers dy, const std::int32_t* index, Places dx) {
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
__global__ void average_pool(Pool pool, Numbers x, Places y) {
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
__global__ void average_pool_gradient(Pool pool, Numbers dy, Places dx) {
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

/// Where element i of a channel lies.
__device__ __forceinline__ std::int64_t element_of(const Channels& s, std::int64_t channel,
                                                   std::int64_t i) {
  if (s.channels_last) return i * s.channels + channel;
  return (i / s.positions * s.channels + channel) * s.positions + i % s.positions;
}

/// How threads share channels. Row-major: a block has one. Channels last: a block has 32
/// neighbours, and each of its warps other positions of them, so that a warp reads what lies
/// together.
template <bool kLast>
struct Share {
  std::int64_t channel, first, step;
  bool any;  // of this thread

  __device__ explicit Share(const Channels& s)
      : channel(kLast ? std::int64_t{blockIdx.x} * 32 + threadIdx.x % 32 : blockIdx.x),
        first(kLast ? threadIdx.x / 32 : threadIdx.x),
        step(kLast ? kBlock / 32 : kBlock),
        any(channel < s.channels) {
    if (!any) channel = 0;
  }
  /// Over all threads of a channel; all threads of the block must come here.
  __device__ float sum(float value) const {
    if constexpr (kLast) {
      __shared__ float parts[kBlock];
      __syncthreads();  // who is behind may still read the parts of the last call
      parts[threadIdx.x] = value;
      __syncthreads();
      value = 0;
      for (int warp = 0; warp < kBlock / 32; ++warp) value += parts[warp * 32 + threadIdx.x % 32];
      return value;
    } else {
      return over_block<kBlock>(value, SumOf());
    }
  }
};

template <bool kLast>
__global__ void batch_norm(Channels s, bool training, Numbers x, Numbers scale, Numbers bias,
                           Numbers given_means, Numbers given_variances, Places means,
                           Places variances, Places y) {
  const Share<kLast> share(s);
  const std::int64_t c = share.channel;
  const std::int64_t count = share.any ? s.images * s.positions : 0;
  const auto population = static_cast<float>(s.images * s.positions);
  float mean = 0, variance = 0;
  if (training) {
    for (std::int64_t i = share.first; i < count; i += share.step) mean += x[element_of(s, c, i)];
    mean = share.sum(mean) / population;
    for (std::int64_t i = share.first; i < count; i += share.step) {
      const float away = x[element_of(s, c, i)] - mean;
      variance += away * away;
    }
    variance = share.sum(variance) / population;
    const bool writes = share.any && share.first == 0;
    if (writes && means) means[c] = mean;
    if (writes && variances) variances[c] = variance;
  } else {
    mean = given_means[c];
    variance = given_variances[c];
  }
  const float factor = 1 / std::sqrt(variance + s.epsilon) * scale[c];
  // Blocks that share channels, which only given moments allow, take positions in turns.
  const std::int64_t step = share.step * gridDim.y;
  for (std::int64_t i = share.first + share.step * blockIdx.y; i < count; i += step) {
    const std::int64_t at = element_of(s, c, i);
    const float value = (x[at] - mean) * factor + bias[c];
    const float raised = value < s.low ? s.low : value;
    y[at] = raised > s.high ? s.high : raised;
  }
}

template <bool kLast>
__global__ void batch_norm_gradient(Channels s, bool training, Numbers dy, Numbers x, Numbers scale,
                                    Numbers means, Numbers variances, Numbers biases, Places dx,
                                    Places dscales, Places dbiases) {
  const Share<kLast> share(s);
  const std::int64_t c = share.channel;
  const std::int64_t count = share.any ? s.images * s.positions : 0;
  const float mean = means[c];
  const float inverse = 1 / std::sqrt(variances[c] + s.epsilon);
  const float factor = inverse * scale[c];
  const float bias = s.clips ? biases[c] : 0.0f;
  const auto passed = [&](std::int64_t at) {
    if (!s.clips) return dy[at];
    const float y = (x[at] - mean) * factor + bias;
    return y < s.passes_from || y > s.high ? 0.0f : dy[at];
  };
  float dbias = 0, dscale = 0;
  for (std::int64_t i = share.first; i < count; i += share.step) {
    const std::int64_t at = element_of(s, c, i);
    const float g = passed(at);
    dbias += g;
    dscale += g * (x[at] - mean) * inverse;
  }
  dbias = share.sum(dbias);
  dscale = share.sum(dscale);
  const bool writes = share.any && share.first == 0;
  if (writes && dscales) dscales[c] = dscale;
  if (writes && dbiases) dbiases[c] = dbias;
  if (!dx) return;
  const auto population = static_cast<float>(s.images * s.positions);
  for (std::int64_t i = share.first; i < count; i += share.step) {
    const std::int64_t at = element_of(s, c, i);
    const float normal = (x[at] - mean) * inverse;
    const float shift = training ? (dbias + normal * dscale) / population : 0.0f;
    dx[at] = factor * (passed(at) - shift);
  }
}

__global__ void variances_of(std::int64_t count, float epsilon, const float* inverses,
                             float* variances) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const float variance = 1 / (inverses[i] * inverses[i]) - epsilon;
    variances[i] = variance < 0 ? 0 : variance;  // NaN stays
  }
}

__global__ void inverse_deviations_of(std::int64_t count, float epsilon, const float* variances,
                                      float* inverses) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    inverses[i] = 1 / std::sqrt(variances[i] + epsilon);
}

__global__ void batch_norm_passed(Channels s, Numbers dy, Numbers x, Numbers scale, Numbers means,
                                  Numbers variances, Numbers biases, Places passed) {
  const std::int64_t count = s.images * s.channels * s.positions;
  for (std::int64_t at = first_of_thread(); at < count; at += step_of_thread()) {
    const std::int64_t c = (s.channels_last ? at : at / s.positions) % s.channels;
    const float factor = 1 / std::sqrt(variances[c] + s.epsilon) * scale[c];
    const float y = (x[at] - means[c]) * factor + biases[c];
    passed[at] = y < s.passes_from || y > s.high ? 0.0f : dy[at];
  }
}

std::int64_t count_of(const Pool& pool, bool inputs) {
  std::int64_t count = pool.planes * pool.inner;
  for (const PoolAxis& axis : pool.axes) count *= inputs ? axis.input : axis.output;
  return count;
}

/// Calls run(lanes, groups) with as many lanes as the inner ones and the addresses allow.
template <class Run>
void with_lanes(const Pool& pool, std::int64_t count, const Numbers& a, const Numbers& b, Run run) {
  if (count == 0) return;
  if (pool.inner % kWide == 0 && moves_wide(a.data) && moves_wide(b.data)) {
    run(std::integral_constant<int, kWide>(), count / kWide);
  } else {
    run(std::integral_constant<int, 1>(), count);
  }
}

}  // namespace

void launch_max_pool(const Pool& pool, const Numbers& x, const Places& y, std::int32_t* index,
                     const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/false), x, y, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(max_pool<decltype(lanes)::value>, blocks_for(groups, queue), kBlock, queue.stream,
              pool, x, y, index);
  });
}

void launch_max_pool_gradient(const Pool& pool, const Numbers& dy, const std::int32_t* index,
                              const Places& dx, const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/true), dy, dx, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(max_pool_gradient<decltype(lanes)::value>, blocks_for(groups, queue), kBlock,
              queue.stream, pool, dy, index, dx);
  });
}

void launch_average_pool(const Pool& pool, const Numbers& x, const Places& y,
                         const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/false), x, y, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(average_pool<decltype(lanes)::value>, blocks_for(groups, queue), kBlock, queue.stream,
              pool, x, y);
  });
}

void launch_average_pool_gradient(const Pool& pool, const Numbers& dy, const Places& dx,
                                  const CudaQueue& queue) {
  with_lanes(pool, count_of(pool, /*inputs=*/true), dy, dx, [&](auto lanes, std::int64_t groups) {
    PT_LAUNCH(average_pool_gradient<decltype(lanes)::value>, blocks_for(groups, queue), kBlock,
              queue.stream, pool, dy, dx);
  });
}

namespace {

unsigned channel_blocks(const Channels& s) {
  return static_cast<unsigned>(s.channels_last ? (s.channels + 31) / 32 : s.channels);
}

}  // namespace

void launch_batch_norm(const Channels& shape, const Numbers& x, const Numbers& scale,
                       const Numbers& bias, const Places& mean, const Places& variance,
                       const Places& y, const CudaQueue& queue) {
  if (shape.channels == 0) return;
  const auto start = [&](auto kernel) {
    PT_LAUNCH(kernel, channel_blocks(shape), kBlock, queue.stream, shape, /*training=*/true, x,
              scale, bias, Numbers(), Numbers(), mean, variance, y);
  };
  shape.channels_last ? start(batch_norm<true>) : start(batch_norm<false>);
}

void launch_batch_norm_inference(const Channels& shape, const Numbers& x, const Numbers& scale,
                                 const Numbers& bias, const Numbers& mean, const Numbers& variance,
                                 const Places& y, const CudaQueue& queue) {
  if (shape.channels == 0) return;
  const unsigned channels = channel_blocks(shape);
  const std::int64_t per_channel = static_cast<std::int64_t>(blocks_for(
                                       shape.images * shape.channels * shape.positions, queue)) /
                                   channels;
  const auto shares = static_cast<unsigned>(per_channel < 1 ? 1 : per_channel);
  const auto start = [&](auto kernel) {
    PT_LAUNCH(kernel, dim3(channels, shares), kBlock, queue.stream, shape, /*training=*/false, x,
              scale, bias, mean, variance, Places(), Places(), y);
  };
  shape.channels_last ? start(batch_norm<true>) : start(batch_norm<false>);
}

void launch_batch_norm_gradient(const Channels& shape, bool training, const Numbers& dy,
                                const Numbers& x, const Numbers& scale, const Numbers& mean,
                                const Numbers& variance, const Numbers& bias, const Places& dx,
                                const Places& dscale, const Places& dbias, const CudaQueue& queue) {
  if (shape.channels == 0) return;
  const auto start = [&](auto kernel) {
    PT_LAUNCH(kernel, channel_blocks(shape), kBlock, queue.stream, shape, training, dy, x, scale,
              mean, variance, bias, dx, dscale, dbias);
  };
  shape.channels_last ? start(batch_norm_gradient<true>) : start(batch_norm_gradient<false>);
}

void launch_variances(std::int64_t count, float epsilon, const float* inverse_deviations,
                      float* variances, const CudaQueue& queue) {
  PT_LAUNCH(variances_of, blocks_for(count, queue), kBlock, queue.stream, count, epsilon,
            inverse_deviations, variances);
}

void launch_inverse_deviations(std::int64_t count, float epsilon, const float* variances,
                               float* inverse_deviations, const CudaQueue& queue) {
  PT_LAUNCH(inverse_deviations_of, blocks_for(count, queue), kBlock, queue.stream, count, epsilon,
            variances, inverse_deviations);
}

void launch_batch_norm_passed(const Channels& shape, const Numbers& dy, const Numbers& x,
                              const Numbers& scale, const Numbers& mean, const Numbers& variance,
                              const Numbers& bias, const Places& passed, const CudaQueue& queue) {
  const std::int64_t count = shape.images * shape.channels * shape.positions;
  PT_LAUNCH(batch_norm_passed, blocks_for(count, queue), kBlock, queue.stream, shape, dy, x, scale,
            mean, variance, bias, passed);
}

}  // namespace pipetrain::spatial
