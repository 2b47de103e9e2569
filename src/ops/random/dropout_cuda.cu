// Dropout.
//
// Bytes and operations for GPT-2 124M with 8 x 1024 tokens (estimates, H200 at 4.3 TB/s): reads one
// tensor (8192, 768) of bfloat16, 12.6 MB, and writes one; 10 rounds of Philox each: 45 us.
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/random/dropout_launch_cuda.h"

namespace pipetrain::dropout {
namespace {

__global__ void dropout(DropoutMask mask, ConstFloatView x, FloatView y, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread())
    y[i] = drop_out(mask, x[i], i);
}

}  // namespace

void launch_dropout(const DropoutMask& mask, const ConstFloatView& x, const FloatView& y,
                    std::int64_t count, const CudaQueue& queue) {
  if (count == 0) return;
  PT_LAUNCH(dropout, blocks_for(count, queue), kBlock, queue.stream, mask, x, y, count);
}

}  // namespace pipetrain::dropout
