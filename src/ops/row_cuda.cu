// Softmax, losses of equal shapes, norms and dropout. A block takes a row; sums go over its threads
// in a fixed order.
//
// Bytes and operations for GPT-2 124M with 8 x 1024 tokens (estimates, H200 at 4.3 TB/s; a tensor
// (8192, 768) of bfloat16 is 12.6 MB, and what a row reads again comes out of the cache):
//   LayerNorm             reads one, writes one; 8 operations an element      6 us
//   its input gradient    reads two, writes one; 12 operations                9 us
//   its weights' gradient reads two; 5 operations; partial sums of 128 rows   6 us, 2 launches
//   Dropout               reads one, writes one; 10 rounds of Philox each    45 us
#include <cmath>
#include <limits>

#include "ops/grid_cuda.h"
#include "ops/row_launch_cuda.h"
#include "ops/stored_access_cuda.h"

namespace pipetrain::row {
namespace {

unsigned blocks_of_rows(std::int64_t rows, const CudaQueue& queue) {
  const std::int64_t most = std::int64_t{16} * queue.multiprocessors;
  return static_cast<unsigned>(rows < most ? rows : most);
}

__global__ void softmax(Lines lines, bool logarithm, Numbers x, Places y) {
  for (std::int64_t line = blockIdx.x; line < lines.outer * lines.inner; line += gridDim.x) {
    const std::int64_t begin = line / lines.inner * lines.extent * lines.inner + line % lines.inner;
    float highest = -std::numeric_limits<float>::infinity();
    for (std::int64_t e = threadIdx.x; e < lines.extent; e += kBlock)
      highest = MaxOf()(highest, x[begin + e * lines.inner]);
    highest = over_block<kBlock>(highest, MaxOf());
    float sum = 0;
    for (std::int64_t e = threadIdx.x; e < lines.extent; e += kBlock)
      sum += std::exp(x[begin + e * lines.inner] - highest);
    sum = over_block<kBlock>(sum, SumOf());
    const float subtract = std::log(sum);
    for (std::int64_t e = threadIdx.x; e < lines.extent; e += kBlock) {
      const float shifted = x[begin + e * lines.inner] - highest;
      y[begin + e * lines.inner] = logarithm ? shifted - subtract : std::exp(shifted) / sum;
    }
  }
}

__global__ void softmax_gradient(Lines lines, bool logarithm, Numbers dy, Numbers y, Places dx) {
  for (std::int64_t line = blockIdx.x; line < lines.outer * lines.inner; line += gridDim.x) {
    const std::int64_t begin = line / lines.inner * lines.extent * lines.inner + line % lines.inner;
    float sum = 0;
    for (std::int64_t e = threadIdx.x; e < lines.extent; e += kBlock) {
      const std::int64_t at = begin + e * lines.inner;
      sum += logarithm ? dy[at] : dy[at] * y[at];
    }
    sum = over_block<kBlock>(sum, SumOf());
    for (std::int64_t e = threadIdx.x; e < lines.extent; e += kBlock) {
      const std::int64_t at = begin + e * lines.inner;
      dx[at] = logarithm ? dy[at] - std::exp(y[at]) * sum : y[at] * (dy[at] - sum);
    }
  }
}

/// Sums of two lists, by one block.
__global__ void add_two(Numbers a, Numbers b, std::int64_t count, Places sum_a, Places sum_b) {
  double first = 0, second = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kBlock) {
    first += static_cast<double>(a[i]);
    second += static_cast<double>(b[i]);
  }
  first = over_block<kBlock>(first, SumOf());
  second = over_block<kBlock>(second, SumOf());
  if (threadIdx.x != 0) return;
  if (sum_a) sum_a[0] = static_cast<float>(first);
  if (sum_b) sum_b[0] = static_cast<float>(second);
}

__device__ __forceinline__ float loss_of(Pointwise kind, float x, float t) {
  switch (kind) {
    case Pointwise::kBinaryCrossEntropy:
      return (x > 0 ? x : 0.0f) - x * t + std::log1p(std::exp(-std::fabs(x)));
    case Pointwise::kSquared:
      return (x - t) * (x - t);
    case Pointwise::kAbsolute:
      return std::fabs(x - t);
  }
  return 0;
}

__device__ __forceinline__ float slope_of(Pointwise kind, float x, float t) {
  switch (kind) {
    case Pointwise::kBinaryCrossEntropy:
      return 1 / (1 + std::exp(-x)) - t;
    case Pointwise::kSquared:
      return 2 * (x - t);
    case Pointwise::kAbsolute:
      return x > t ? 1.0f : (x < t ? -1.0f : 0.0f);
  }
  return 0;
}

__global__ void pointwise_loss(Pointwise kind, Numbers x, Numbers target, std::int64_t count,
                               Places losses, Places hits) {
  float loss = 0, hit = 0;
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    loss += loss_of(kind, x[i], target[i]);
    hit += (x[i] > 0) == (target[i] > 0.5f) ? 1.0f : 0.0f;
  }
  loss = over_block<kBlock>(loss, SumOf());
  hit = over_block<kBlock>(hit, SumOf());
  if (threadIdx.x != 0) return;
  losses[blockIdx.x] = loss;
  hits[blockIdx.x] = hit;
}

__global__ void pointwise_gradient(Pointwise kind, Numbers x, Numbers target, std::int64_t count,
                                   Numbers gy, Places dx) {
  const float scale = gy[0];
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    dx[i] = slope_of(kind, x[i], target[i]) * scale;
}

__global__ void norm_forward(Norm norm, Numbers x, Numbers scale, Numbers bias, Places y,
                             Places means, Places inverses) {
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const Numbers from = x + row * norm.width;
    float mean = 0;
    if (norm.centred) {
      for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock) mean += from[i];
      mean = over_block<kBlock>(mean, SumOf()) / width;
    }
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock)
      squares += (from[i] - mean) * (from[i] - mean);
    squares = over_block<kBlock>(squares, SumOf());
    const float inverse = 1 / std::sqrt(squares / width + norm.epsilon);
    if (threadIdx.x == 0 && means) means[row] = mean;
    if (threadIdx.x == 0 && inverses) inverses[row] = inverse;
    for (std::int64_t i = threadIdx.x; y && i < norm.width; i += kBlock) {
      const float normal = (from[i] - mean) * inverse;
      y[row * norm.width + i] = normal * (scale ? scale[i] : 1.0f) + (bias ? bias[i] : 0.0f);
    }
  }
}

__global__ void norm_input_gradient(Norm norm, Numbers dy, Numbers x, Numbers scale, Numbers means,
                                    Numbers inverses, Places dx) {
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const std::int64_t begin = row * norm.width;
    const float mean = norm.centred ? means[row] : 0.0f;
    const float inverse = inverses[row];
    float sum = 0, weighted = 0;
    for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock) {
      const float g = dy[begin + i] * (scale ? scale[i] : 1.0f);
      sum += g;
      weighted += g * (x[begin + i] - mean) * inverse;
    }
    sum = norm.centred ? over_block<kBlock>(sum, SumOf()) / width : 0.0f;
    weighted = over_block<kBlock>(weighted, SumOf()) / width;
    for (std::int64_t i = threadIdx.x; i < norm.width; i += kBlock) {
      const float g = dy[begin + i] * (scale ? scale[i] : 1.0f);
      dx[begin + i] = inverse * (g - sum - (x[begin + i] - mean) * inverse * weighted);
    }
  }
}

/// scales, biases: (pieces, width)
__global__ void norm_weight_gradient(Norm norm, std::int64_t piece, Numbers dy, Numbers x,
                                     Numbers means, Numbers inverses, Places scales,
                                     Places biases) {
  const std::int64_t first = blockIdx.y * piece;
  const std::int64_t last = first + piece < norm.rows ? first + piece : norm.rows;
  for (std::int64_t i = first_of_thread(); i < norm.width; i += step_of_thread()) {
    float scale = 0, bias = 0;
    for (std::int64_t row = first; row < last; ++row) {
      const float g = dy[row * norm.width + i];
      const float mean = norm.centred ? means[row] : 0.0f;
      scale += g * (x[row * norm.width + i] - mean) * inverses[row];
      bias += g;
    }
    scales[blockIdx.y * norm.width + i] = scale;
    biases[blockIdx.y * norm.width + i] = bias;
  }
}

__global__ void norm_weight_sum(std::int64_t pieces, std::int64_t width, Numbers scales,
                                Numbers biases, Places dscale, Places dbias) {
  for (std::int64_t i = first_of_thread(); i < width; i += step_of_thread()) {
    float scale = 0, bias = 0;
    for (std::int64_t p = 0; p < pieces; ++p) {
      scale += scales[p * width + i];
      bias += biases[p * width + i];
    }
    if (dscale) dscale[i] = scale;
    if (dbias) dbias[i] = bias;
  }
}

__global__ void dropout(DropoutMask mask, Numbers x, Places y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    y[i] = drop_out(mask, x[i], i);
}

}  // namespace

void launch_softmax(const Lines& lines, bool logarithm, const Numbers& x, const Places& y,
                    const CudaQueue& queue) {
  const std::int64_t count = lines.outer * lines.inner;
  if (count * lines.extent == 0) return;
  PT_LAUNCH(softmax, blocks_of_rows(count, queue), kBlock, queue.stream, lines, logarithm, x, y);
}

void launch_softmax_gradient(const Lines& lines, bool logarithm, const Numbers& dy,
                             const Numbers& y, const Places& dx, const CudaQueue& queue) {
  const std::int64_t count = lines.outer * lines.inner;
  if (count * lines.extent == 0) return;
  PT_LAUNCH(softmax_gradient, blocks_of_rows(count, queue), kBlock, queue.stream, lines, logarithm,
            dy, y, dx);
}

void launch_two_sums(const Numbers& a, const Numbers& b, std::int64_t count, const Places& sum_a,
                     const Places& sum_b, const CudaQueue& queue) {
  PT_LAUNCH(add_two, 1, kBlock, queue.stream, a, b, count, sum_a, sum_b);
}

void launch_pointwise_loss(Pointwise kind, const Numbers& x, const Numbers& target,
                           std::int64_t count, const Places& loss, const Places& correct,
                           float* workspace, const CudaQueue& queue) {
  float* hits = workspace + kPointwiseParts;
  PT_LAUNCH(pointwise_loss, kPointwiseParts, kBlock, queue.stream, kind, x, target, count,
            workspace, hits);
  launch_two_sums(Numbers(workspace), Numbers(hits), kPointwiseParts, loss, correct, queue);
}

void launch_pointwise_gradient(Pointwise kind, const Numbers& x, const Numbers& target,
                               std::int64_t count, const Numbers& gy, const Places& dx,
                               const CudaQueue& queue) {
  if (count == 0) return;
  PT_LAUNCH(pointwise_gradient, blocks_for(count, queue), kBlock, queue.stream, kind, x, target,
            count, gy, dx);
}

void launch_norm(const Norm& norm, const Numbers& x, const Numbers& scale, const Numbers& bias,
                 const Places& y, const Places& means, const Places& inverses,
                 const CudaQueue& queue) {
  if (norm.rows == 0) return;
  PT_LAUNCH(norm_forward, blocks_of_rows(norm.rows, queue), kBlock, queue.stream, norm, x, scale,
            bias, y, means, inverses);
}

void launch_norm_input_gradient(const Norm& norm, const Numbers& dy, const Numbers& x,
                                const Numbers& scale, const Numbers& means, const Numbers& inverses,
                                const Places& dx, const CudaQueue& queue) {
  if (norm.rows == 0) return;
  PT_LAUNCH(norm_input_gradient, blocks_of_rows(norm.rows, queue), kBlock, queue.stream, norm, dy,
            x, scale, means, inverses, dx);
}

std::int64_t norm_pieces(const Norm& norm) {
  const std::int64_t pieces = (norm.rows + 63) / 64;
  return pieces < 1 ? 1 : pieces < 128 ? pieces : 128;
}

void launch_norm_weight_gradient(const Norm& norm, const Numbers& dy, const Numbers& x,
                                 const Numbers& means, const Numbers& inverses,
                                 const Places& dscale, const Places& dbias, float* workspace,
                                 const CudaQueue& queue) {
  const std::int64_t pieces = norm_pieces(norm);
  const std::int64_t piece = (norm.rows + pieces - 1) / pieces;
  float* biases = workspace + pieces * norm.width;
  PT_LAUNCH(norm_weight_gradient,
            dim3(blocks_for(norm.width, queue), static_cast<unsigned>(pieces)), kBlock,
            queue.stream, norm, piece, dy, x, means, inverses, workspace, biases);
  PT_LAUNCH(norm_weight_sum, blocks_for(norm.width, queue), kBlock, queue.stream, pieces,
            norm.width, Numbers(workspace), Numbers(biases), dscale, dbias);
}

void launch_dropout(const DropoutMask& mask, const Numbers& x, const Places& y, std::int64_t count,
                    const CudaQueue& queue) {
  if (count == 0) return;
  PT_LAUNCH(dropout, blocks_for(count, queue), kBlock, queue.stream, mask, x, y, count);
}

}  // namespace pipetrain::row
