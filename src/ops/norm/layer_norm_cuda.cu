// Layer and root-mean-square normalization: one block per row; sums over its threads have a fixed
// order.
//
// Bytes and operations for GPT-2 124M with 8 x 1024 tokens (estimates, H200 at 4.3 TB/s; a tensor
// (8192, 768) of bfloat16 is 12.6 MB, and repeated reads of a row hit the cache):
//   LayerNorm             reads one, writes one; 8 operations per element     6 us
//   its input gradient    reads two, writes one; 12 operations                9 us
//   its weights' gradient reads two; 5 operations; partial sums of 128 rows   6 us, 2 launches
#include <cmath>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/norm/layer_norm_launch_cuda.h"

namespace pipetrain::layer_norm {
namespace {

__global__ void norm_forward(Norm norm, ConstFloatView x, ConstFloatView scale, ConstFloatView bias,
                             FloatView y, FloatView means, FloatView inverses) {
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const ConstFloatView from = x + row * norm.width;
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

__global__ void norm_input_gradient(Norm norm, ConstFloatView dy, ConstFloatView x,
                                    ConstFloatView scale, ConstFloatView means,
                                    ConstFloatView inverses, FloatView dx) {
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

/// scales, biases: (chunks, width)
__global__ void norm_weight_gradient(Norm norm, std::int64_t chunk, ConstFloatView dy,
                                     ConstFloatView x, ConstFloatView means,
                                     ConstFloatView inverses, FloatView scales, FloatView biases) {
  const std::int64_t first = blockIdx.y * chunk;
  const std::int64_t last = first + chunk < norm.rows ? first + chunk : norm.rows;
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

__global__ void norm_weight_sum(std::int64_t chunks, std::int64_t width, ConstFloatView scales,
                                ConstFloatView biases, FloatView dscale, FloatView dbias) {
  for (std::int64_t i = first_of_thread(); i < width; i += step_of_thread()) {
    float scale = 0, bias = 0;
    for (std::int64_t p = 0; p < chunks; ++p) {
      scale += scales[p * width + i];
      bias += biases[p * width + i];
    }
    if (dscale) dscale[i] = scale;
    if (dbias) dbias[i] = bias;
  }
}

}  // namespace

void launch_norm(const Norm& norm, const ConstFloatView& x, const ConstFloatView& scale,
                 const ConstFloatView& bias, const FloatView& y, const FloatView& means,
                 const FloatView& inverses, const CudaQueue& queue) {
  if (norm.rows == 0) return;
  PT_LAUNCH(norm_forward, blocks_of_rows(norm.rows, queue), kBlock, queue.stream, norm, x, scale,
            bias, y, means, inverses);
}

void launch_norm_input_gradient(const Norm& norm, const ConstFloatView& dy, const ConstFloatView& x,
                                const ConstFloatView& scale, const ConstFloatView& means,
                                const ConstFloatView& inverses, const FloatView& dx,
                                const CudaQueue& queue) {
  if (norm.rows == 0) return;
  PT_LAUNCH(norm_input_gradient, blocks_of_rows(norm.rows, queue), kBlock, queue.stream, norm, dy,
            x, scale, means, inverses, dx);
}

std::int64_t norm_chunks(const Norm& norm) {
  const std::int64_t chunks = (norm.rows + 63) / 64;
  return chunks < 1 ? 1 : chunks < 128 ? chunks : 128;
}

void launch_norm_weight_gradient(const Norm& norm, const ConstFloatView& dy,
                                 const ConstFloatView& x, const ConstFloatView& means,
                                 const ConstFloatView& inverses, const FloatView& dscale,
                                 const FloatView& dbias, float* workspace, const CudaQueue& queue) {
  const std::int64_t chunks = norm_chunks(norm);
  const std::int64_t chunk = (norm.rows + chunks - 1) / chunks;
  float* biases = workspace + chunks * norm.width;
  PT_LAUNCH(norm_weight_gradient,
            dim3(blocks_for(norm.width, queue), static_cast<unsigned>(chunks)), kBlock,
            queue.stream, norm, chunk, dy, x, means, inverses, workspace, biases);
  PT_LAUNCH(norm_weight_sum, blocks_for(norm.width, queue), kBlock, queue.stream, chunks,
            norm.width, ConstFloatView(workspace), ConstFloatView(biases), dscale, dbias);
}

}  // namespace pipetrain::layer_norm
