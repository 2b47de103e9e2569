// Batch normalization with channels last: sums of chunks of rows, which a second launch adds up in
// a fixed order, then one pass over the elements. A thread has 8 adjacent channels, of which it
// keeps the coefficients in registers.
//
// Bytes for a bfloat16 tensor T (64, 256, 56, 56) of ResNet-50, 103 MB, and the least time that
// they take (estimates, H200 at 4.3 TB/s; its cache of 60 MB may serve a part of the second reads):
//   forward    reads T twice, writes it once         309 MB    72 us
//   gradient   reads dy and x twice, writes dx       514 MB   120 us
// The last pass goes backwards, so that it begins with what the sums left in the cache. Partial
// sums are 2 floats per channel and chunk: 1 MB here, written and read once. Instructions per
// element in the loops (sm_90): 7 and 11 forward, 12 and 13 in the gradient, which at full rate
// take less than half of these times. cuDNN's kernels took 115 and 250 us (measured on an H200).
//
// Compiled without fused multiply-add: the gradient recomputes y to see where it was clipped, and
// must get the bits of the forward pass.
#include <cmath>
#include <initializer_list>
#include <type_traits>

#include "ops/cuda/grid_cuda.h"
#include "ops/norm/batch_norm_tiles_cuda.h"

namespace pipetrain::batch_norm {
namespace {

/// Threads and channels of a block that adds up partial sums.
constexpr int kFinish = 512, kFinished = 8;

/// Arrays of one float per channel between launches: coefficients of the last pass, then two
/// partial sums of every chunk.
struct Workspace {
  float *mean, *factor, *bias, *shift, *slope;
  float *first, *second;  // (chunks, channels)

  Workspace(float* at, const Tiles& t)
      : mean(at),
        factor(mean + t.channels),
        bias(factor + t.channels),
        shift(bias + t.channels),
        slope(shift + t.channels),
        first(slope + t.channels),
        second(first + t.chunks * t.channels) {}
};

/// A starting point for sums of differences: infinities and NaN shall show in the result as they do
/// in a plain sum.
__device__ __forceinline__ float finite_or_zero(float value) {
  return value - value == 0 ? value : 0.0f;
}

/// Writes the partial sums of a block.
template <int kWidth>
class BlockParts {
 public:
  __device__ BlockParts(const Tiles& t, const Share<kWidth>& share)
      : width_(kWidth << t.shift),
        lanes_(kBlock >> t.shift),
        column_(static_cast<int>(threadIdx.x)),
        at_(share.chunk * t.channels + share.tile + column_),
        any_(column_ < width_ && share.tile + column_ < t.channels) {
    if (lanes_ > share.rows) lanes_ = share.rows;
  }
  /// Whether the thread adds up a channel: those of the lanes, `lanes()` of them `width()` apart.
  __device__ bool any() const { return any_; }
  __device__ int lanes() const { return lanes_; }
  __device__ float of(const float* parts, int lane) const { return parts[lane * width_ + column_]; }
  __device__ std::int64_t place() const { return at_; }

 private:
  int width_, lanes_, column_;
  std::int64_t at_;
  bool any_;
};

/// The mean of every chunk, and the sum of squares of the distances from it. Sums are of distances
/// from the first number of each thread: a large mean costs no accuracy.
template <int kStored, int kWidth>
__global__ void __launch_bounds__(kBlock, kStored == 0 ? 2 : 4)
    moments_of_chunks(Tiles t, ConstFloatView x, bool aligned, float* means, float* squares) {
  const Share<kWidth> share(t, blockIdx.x);
  float from[kWidth], sum[kWidth], square[kWidth];
  for (int i = 0; i < kWidth; ++i) from[i] = sum[i] = square[i] = 0;
  bool begins = true;
  std::int64_t at = share.first;
  in_batches<kStored, kWidth>(share.count, [&](auto batch) {
    constexpr int kRows = decltype(batch)::value;
    Packed<kStored, kWidth> rows[kRows];
    for (int r = 0; r < kRows; ++r) rows[r].load(x, at + r * share.step, aligned);
    at += kRows * share.step;
    for (int i = 0; begins && i < kWidth; ++i) from[i] = finite_or_zero(rows[0][i]);
    begins = false;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kWidth; ++i) {
        const float away = rows[r][i] - from[i];
        sum[i] += away;
        square[i] += away * away;
      }
    }
  });
  __shared__ float mean_parts[kBlock * kWidth];
  __shared__ float square_parts[kBlock * kWidth];
  const float part = 1 / static_cast<float>(share.count > 0 ? share.count : 1);
  for (int i = 0; i < kWidth; ++i) {
    const float mean = sum[i] * part;
    const float rest = square[i] - sum[i] * mean;
    mean_parts[threadIdx.x * kWidth + i] = from[i] + mean;
    square_parts[threadIdx.x * kWidth + i] = rest < 0 ? 0 : rest;  // NaN stays
  }
  __syncthreads();
  const BlockParts<kWidth> parts(t, share);
  if (!parts.any()) return;
  const float base = finite_or_zero(parts.of(mean_parts, 0));
  float mean = 0, total = 0;
  for (int lane = 0; lane < parts.lanes(); ++lane)
    mean += static_cast<float>(share.rows_of(lane, t)) * (parts.of(mean_parts, lane) - base);
  mean = base + mean / static_cast<float>(share.rows);
  for (int lane = 0; lane < parts.lanes(); ++lane) {
    const float away = parts.of(mean_parts, lane) - mean;
    total +=
        parts.of(square_parts, lane) + static_cast<float>(share.rows_of(lane, t)) * (away * away);
  }
  means[parts.place()] = mean;
  squares[parts.place()] = total;
}

struct Two {
  float first, second;
};

/// What a thread of a block that adds up partial sums does: every kLanes-th chunk of a channel.
struct Finish {
  static constexpr int kLanes = kFinish / kFinished;
  std::int64_t channel;
  unsigned lane;
  bool any;

  __device__ explicit Finish(const Tiles& t)
      : channel(std::int64_t{blockIdx.x} * kFinished + threadIdx.x % kFinished),
        lane(threadIdx.x / kFinished),
        any(channel < t.channels) {
    if (!any) channel = 0;
  }
  /// The sums of value(chunk) over all chunks. Once per kernel.
  template <class Value>
  __device__ Two sums(unsigned chunks, Value value) const {
    constexpr unsigned kLoads = 5;  // in flight at once
    __shared__ Two parts[kFinish / 32][kFinished];
    Two total = {0, 0};
    for (unsigned first = lane; first < chunks; first += kLoads * kLanes) {
      Two values[kLoads];
      for (unsigned i = 0; i < kLoads; ++i) {
        const unsigned chunk = first + i * kLanes;
        values[i] = value(chunk < chunks ? chunk : chunks - 1);
      }
      for (unsigned i = 0; i < kLoads; ++i) {
        const bool counts = first + i * kLanes < chunks;
        total.first += counts ? values[i].first : 0.0f;
        total.second += counts ? values[i].second : 0.0f;
      }
    }
    for (int distance = kFinished; distance < 32; distance *= 2) {
      total.first += from_lane(total.first, distance);
      total.second += from_lane(total.second, distance);
    }
    if (threadIdx.x % 32 < kFinished) parts[threadIdx.x / 32][threadIdx.x % 32] = total;
    __syncthreads();
    total = {0, 0};
    for (int warp = 0; warp < kFinish / 32; ++warp) {
      total.first += parts[warp][threadIdx.x % kFinished].first;
      total.second += parts[warp][threadIdx.x % kFinished].second;
    }
    return total;
  }
  __device__ bool writes() const { return any && lane == 0; }
};

/// Squares are of distances from the mean of the first chunk. Their sum is at most about `chunks`
/// times that of squares of distances from the mean, which bounds what the difference loses.
__global__ void __launch_bounds__(kFinish)
    finish_moments(Tiles t, float epsilon, Workspace parts, ConstFloatView scale,
                   ConstFloatView bias, FloatView means, FloatView variances) {
  const Finish finish(t);
  const std::int64_t c = finish.channel;
  const float given_scale = scale[c], given_bias = bias[c];
  const float base = finite_or_zero(parts.first[c]);
  const Two sums = finish.sums(t.chunks, [&](unsigned chunk) {
    const std::int64_t rest = t.rows - static_cast<std::int64_t>(chunk) * t.chunk;
    const auto rows = static_cast<float>(rest < t.chunk ? static_cast<int>(rest) : t.chunk);
    const float away = parts.first[chunk * t.channels + c] - base;
    return Two{rows * away, parts.second[chunk * t.channels + c] + rows * (away * away)};
  });
  if (!finish.writes()) return;
  const auto rows = static_cast<float>(t.rows);
  const float moved = sums.first / rows;
  const float difference = sums.second / rows - moved * moved;
  const float mean = base + moved, variance = difference < 0 ? 0 : difference;  // NaN stays
  if (means) means[c] = mean;
  if (variances) variances[c] = variance;
  parts.mean[c] = mean;
  parts.factor[c] = 1 / std::sqrt(variance + epsilon) * given_scale;
  parts.bias[c] = given_bias;
}

/// The coefficients for given moments.
__global__ void given_moments(Tiles t, float epsilon, ConstFloatView means,
                              ConstFloatView variances, ConstFloatView scale, ConstFloatView bias,
                              Workspace to) {
  for (std::int64_t c = first_of_thread(); c < t.channels; c += step_of_thread()) {
    to.mean[c] = means[c];
    to.factor[c] = 1 / std::sqrt(variances[c] + epsilon) * scale[c];
    to.bias[c] = bias[c];
  }
}

template <int kStored, int kWidth, bool kAdds>
__global__ void __launch_bounds__(kBlock, kAdds || kStored == 0 ? 2 : 4)
    normalize(Tiles t, float low, float high, ConstFloatView x, ConstFloatView residual,
              bool aligned, Workspace given, FloatView y) {
  const Share<kWidth> share(t, gridDim.x - 1 - blockIdx.x);
  if (share.count == 0) return;
  const auto mean = floats_at<kWidth>(given.mean + share.channel);
  const auto factor = floats_at<kWidth>(given.factor + share.channel);
  const auto bias = floats_at<kWidth>(given.bias + share.channel);
  std::int64_t at = share.first + (share.count - 1) * share.step;
  in_batches<kStored, kWidth>(share.count, [&](auto batch) {
    constexpr int kRows = decltype(batch)::value;
    Packed<kStored, kWidth> rows[kRows];
    [[maybe_unused]] Packed<kStored, kWidth> added[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r].load(x, at - r * share.step, aligned);
      if constexpr (kAdds) added[r].load(residual, at - r * share.step, aligned);
    }
    for (int r = 0; r < kRows; ++r) {
      Columns<kWidth> out;
      for (int i = 0; i < kWidth; ++i) {
        float value = (rows[r][i] - mean.values[i]) * factor.values[i] + bias.values[i];
        if constexpr (kAdds) value += added[r][i];
        const float raised = value < low ? low : value;
        out.values[i] = raised > high ? high : raised;
      }
      store<kStored>(out, y, at - r * share.step, aligned);
    }
    at -= kRows * share.step;
  });
}

/// What a gradient needs of the forward pass. Without limits all of dy passes.
struct Forward {
  ConstFloatView scale, means, variances, biases;
  float epsilon, passes_from, high;
};

/// Sums of dy and of dy (x - mean) where y was not clipped.
template <int kStored, int kWidth>
__global__ void __launch_bounds__(kBlock, 2)
    gradient_sums_of_chunks(Tiles t, Forward forward, ConstFloatView dy, ConstFloatView x,
                            bool aligned, float* biases, float* slopes) {
  const Share<kWidth> share(t, blockIdx.x);
  __shared__ float sum_parts[kBlock * kWidth];
  __shared__ float weighted_parts[kBlock * kWidth];
  const int width = kWidth << t.shift, mine = static_cast<int>(threadIdx.x);
  float* const coefficients = sum_parts;  // at first
  if (mine < width && share.tile + mine < t.channels) {
    const std::int64_t c = share.tile + mine;
    // All loads before the first use.
    const float mean = forward.means[c], variance = forward.variances[c], scale = forward.scale[c];
    const float bias = forward.biases ? forward.biases[c] : 0.0f;
    coefficients[mine] = mean;
    coefficients[width + mine] = 1 / std::sqrt(variance + forward.epsilon) * scale;
    weighted_parts[mine] = bias;
  }
  __syncthreads();
  float mean[kWidth], factor[kWidth], bias[kWidth], sum[kWidth], weighted[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    const int column = static_cast<int>(share.channel - share.tile) + i;
    mean[i] = coefficients[column];
    factor[i] = coefficients[width + column];
    bias[i] = weighted_parts[column];
    sum[i] = weighted[i] = 0;
  }
  __syncthreads();  // before sums take their place
  std::int64_t at = share.first;
  in_batches<kStored, kWidth>(share.count, [&](auto batch) {
    constexpr int kRows = decltype(batch)::value;
    Packed<kStored, kWidth> rows[kRows], gradients[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r].load(x, at + r * share.step, aligned);
      gradients[r].load(dy, at + r * share.step, aligned);
    }
    at += kRows * share.step;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kWidth; ++i) {
        const float away = rows[r][i] - mean[i];
        const float y = away * factor[i] + bias[i];
        const float g = y < forward.passes_from || y > forward.high ? 0.0f : gradients[r][i];
        sum[i] += g;
        weighted[i] += g * away;
      }
    }
  });
  for (int i = 0; i < kWidth; ++i) {
    sum_parts[threadIdx.x * kWidth + i] = sum[i];
    weighted_parts[threadIdx.x * kWidth + i] = weighted[i];
  }
  __syncthreads();
  const BlockParts<kWidth> parts(t, share);
  if (!parts.any()) return;
  float total = 0, total_weighted = 0;
  for (int lane = 0; lane < parts.lanes(); ++lane) {
    total += parts.of(sum_parts, lane);
    total_weighted += parts.of(weighted_parts, lane);
  }
  biases[parts.place()] = total;
  slopes[parts.place()] = total_weighted;
}

/// Without `sums` there are no partial sums, and only coefficients are written.
__global__ void __launch_bounds__(kFinish)
    finish_gradient(Tiles t, Forward forward, bool sums, Workspace parts, FloatView dscales,
                    FloatView dbiases) {
  const Finish finish(t);
  const std::int64_t c = finish.channel;
  const float mean = forward.means[c], scale = forward.scale[c];
  const float bias = forward.biases ? forward.biases[c] : 0.0f;
  const float deviation = std::sqrt(forward.variances[c] + forward.epsilon);
  const Two total = finish.sums(sums ? t.chunks : 0, [&](unsigned chunk) {
    return Two{parts.first[chunk * t.channels + c], parts.second[chunk * t.channels + c]};
  });
  if (!finish.writes()) return;
  const auto rows = static_cast<float>(t.rows);
  const float inverse = 1 / deviation, dbias = total.first, dscale = total.second * inverse;
  if (dscales) dscales[c] = dscale;
  if (dbiases) dbiases[c] = dbias;
  parts.mean[c] = mean;
  parts.factor[c] = inverse * scale;
  parts.bias[c] = bias;
  parts.shift[c] = dbias / rows;
  parts.slope[c] = dscale * inverse / rows;
}

/// `training`: mean and variance depend on x.
template <int kStored, int kWidth>
__global__ void __launch_bounds__(kBlock, 2)
    input_gradient(Tiles t, bool training, float passes_from, float high, ConstFloatView dy,
                   ConstFloatView x, bool aligned, Workspace given, FloatView dx) {
  const Share<kWidth> share(t, gridDim.x - 1 - blockIdx.x);
  if (share.count == 0) return;
  const auto mean = floats_at<kWidth>(given.mean + share.channel);
  const auto factor = floats_at<kWidth>(given.factor + share.channel);
  const auto bias = floats_at<kWidth>(given.bias + share.channel);
  const auto shift = floats_at<kWidth>(given.shift + share.channel);
  const auto slope = floats_at<kWidth>(given.slope + share.channel);
  std::int64_t at = share.first + (share.count - 1) * share.step;
  in_batches<kStored, kWidth>(share.count, [&](auto batch) {
    constexpr int kRows = decltype(batch)::value;
    Packed<kStored, kWidth> rows[kRows], gradients[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r].load(x, at - r * share.step, aligned);
      gradients[r].load(dy, at - r * share.step, aligned);
    }
    for (int r = 0; r < kRows; ++r) {
      Columns<kWidth> out;
      for (int i = 0; i < kWidth; ++i) {
        const float away = rows[r][i] - mean.values[i];
        const float y = away * factor.values[i] + bias.values[i];
        const float g = y < passes_from || y > high ? 0.0f : gradients[r][i];
        const float moved = shift.values[i] + away * slope.values[i];
        out.values[i] = factor.values[i] * (g - (training ? moved : 0.0f));
      }
      store<kStored>(out, dx, at - r * share.step, aligned);
    }
    at -= kRows * share.step;
  });
}

bool are_aligned(std::initializer_list<ConstFloatView> maps) {
  for (const ConstFloatView& map : maps)
    if (!moves_wide(map.data)) return false;
  return true;
}

unsigned finishing_blocks(const Tiles& t) {
  return static_cast<unsigned>((t.channels + kFinished - 1) / kFinished);
}

void launch_normalize(const Channels& shape, const Tiles& t, const ConstFloatView& x,
                      const ConstFloatView& residual, const Workspace& given, const FloatView& y,
                      const CudaQueue& queue) {
  const bool aligned = are_aligned({x, residual, y});
  with_form(shape, {x, residual, y}, aligned, [&](auto form) {
    using Chosen = decltype(form);
    const auto start = [&](auto kernel) {
      PT_LAUNCH(kernel, t.blocks(), kBlock, queue.stream, t, shape.low, shape.high, x, residual,
                aligned, given, y);
    };
    residual ? start(normalize<Chosen::kStored, Chosen::kWidth, true>)
             : start(normalize<Chosen::kStored, Chosen::kWidth, false>);
  });
}

}  // namespace

std::int64_t workspace_floats(const Channels& shape) {
  if (!shape.channels_last || shape.channels == 0 || shape.images * shape.positions == 0) return 0;
  const Tiles t = tiles_of(shape);
  return (5 + 2 * static_cast<std::int64_t>(t.chunks)) * t.channels;
}

void launch_batch_norm_last(const Channels& shape, const ConstFloatView& x,
                            const ConstFloatView& scale, const ConstFloatView& bias,
                            const ConstFloatView& residual, const FloatView& mean,
                            const FloatView& variance, const FloatView& y, float* workspace,
                            const CudaQueue& queue) {
  const Tiles t = tiles_of(shape);
  const Workspace parts(workspace, t);
  const bool aligned = are_aligned({x});
  with_form(shape, {x}, aligned, [&](auto form) {
    using Chosen = decltype(form);
    const auto kernel = moments_of_chunks<Chosen::kStored, Chosen::kWidth>;
    PT_LAUNCH(kernel, t.blocks(), kBlock, queue.stream, t, x, aligned, parts.first, parts.second);
  });
  PT_LAUNCH(finish_moments, finishing_blocks(t), kFinish, queue.stream, t, shape.epsilon, parts,
            scale, bias, mean, variance);
  launch_normalize(shape, t, x, residual, parts, y, queue);
}

void launch_batch_norm_inference_last(const Channels& shape, const ConstFloatView& x,
                                      const ConstFloatView& scale, const ConstFloatView& bias,
                                      const ConstFloatView& mean, const ConstFloatView& variance,
                                      const FloatView& y, float* workspace,
                                      const CudaQueue& queue) {
  const Tiles t = tiles_of(shape);
  const Workspace coefficients(workspace, t);
  PT_LAUNCH(given_moments, blocks_for(t.channels, queue), kBlock, queue.stream, t, shape.epsilon,
            mean, variance, scale, bias, coefficients);
  launch_normalize(shape, t, x, ConstFloatView(), coefficients, y, queue);
}

void launch_batch_norm_gradient_last(const Channels& shape, bool training, const ConstFloatView& dy,
                                     const ConstFloatView& x, const ConstFloatView& scale,
                                     const ConstFloatView& mean, const ConstFloatView& variance,
                                     const ConstFloatView& bias, const FloatView& dx,
                                     const FloatView& dscale, const FloatView& dbias,
                                     float* workspace, const CudaQueue& queue) {
  const Tiles t = tiles_of(shape);
  const Workspace parts(workspace, t);
  const Forward forward = {scale,
                           mean,
                           variance,
                           shape.clips ? bias : ConstFloatView(),
                           shape.epsilon,
                           shape.clips ? shape.passes_from : -INFINITY,
                           shape.clips ? shape.high : INFINITY};
  const bool sums = training || dscale || dbias;
  if (sums) {
    const bool aligned = are_aligned({dy, x});
    with_form(shape, {dy, x}, aligned, [&](auto form) {
      using Chosen = decltype(form);
      const auto kernel = gradient_sums_of_chunks<Chosen::kStored, Chosen::kWidth>;
      PT_LAUNCH(kernel, t.blocks(), kBlock, queue.stream, t, forward, dy, x, aligned, parts.first,
                parts.second);
    });
  }
  PT_LAUNCH(finish_gradient, finishing_blocks(t), kFinish, queue.stream, t, forward, sums, parts,
            dscale, dbias);
  if (!dx) return;
  const bool aligned = are_aligned({dy, x, dx});
  with_form(shape, {dy, x, dx}, aligned, [&](auto form) {
    using Chosen = decltype(form);
    const auto kernel = input_gradient<Chosen::kStored, Chosen::kWidth>;
    PT_LAUNCH(kernel, t.blocks(), kBlock, queue.stream, t, training, forward.passes_from,
              forward.high, dy, x, aligned, parts, dx);
  });
}

}  // namespace pipetrain::batch_norm
