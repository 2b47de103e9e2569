// Softmax: one block per row; sums over its threads have a fixed order.
#include <cmath>
#include <limits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/softmax/softmax_launch_cuda.h"

namespace pipetrain::softmax {
namespace {

__global__ void softmax(Lines lines, bool logarithm, ConstFloatView x, FloatView y) {
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

__global__ void softmax_gradient(Lines lines, bool logarithm, ConstFloatView dy, ConstFloatView y,
                                 FloatView dx) {
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

}  // namespace

void launch_softmax(const Lines& lines, bool logarithm, const ConstFloatView& x, const FloatView& y,
                    const CudaQueue& queue) {
  const std::int64_t count = lines.outer * lines.inner;
  if (count * lines.extent == 0) return;
  PT_LAUNCH(softmax, blocks_of_rows(count, queue), kBlock, queue.stream, lines, logarithm, x, y);
}

void launch_softmax_gradient(const Lines& lines, bool logarithm, const ConstFloatView& dy,
                             const ConstFloatView& y, const FloatView& dx, const CudaQueue& queue) {
  const std::int64_t count = lines.outer * lines.inner;
  if (count * lines.extent == 0) return;
  PT_LAUNCH(softmax_gradient, blocks_of_rows(count, queue), kBlock, queue.stream, lines, logarithm,
            dy, y, dx);
}

}  // namespace pipetrain::softmax
