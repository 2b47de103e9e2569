// Resampling: a thread has one or kWide adjacent results and sums their terms in order, so that no
// sum depends on timing. The matrix is in shared memory.
#include <type_traits>

#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/resample/resample_launch_cuda.h"

namespace pipetrain::resize {
namespace {

template <int kLanes>
__global__ void __launch_bounds__(kBlock) resample(Resample work, ConstFloatView x, FloatView y) {
  __shared__ Terms terms;
  const int outputs = static_cast<int>(work.outputs), count = work.terms.first[outputs];
  for (int i = static_cast<int>(threadIdx.x); i <= outputs; i += kBlock)
    terms.first[i] = work.terms.first[i];
  for (int t = static_cast<int>(threadIdx.x); t < count; t += kBlock) {
    terms.index[t] = work.terms.index[t];
    terms.weight[t] = work.terms.weight[t];
  }
  __syncthreads();
  const std::int64_t inner = work.inner / kLanes, all = work.outer * outputs * inner;
  for (std::int64_t i = first_of_thread(); i < all; i += step_of_thread()) {
    const std::int64_t k = i % inner, row = i / inner;
    const int output = static_cast<int>(row % outputs);
    const std::int64_t from = row / outputs * work.inputs * inner + k;
    WideFloats sum{};
    for (int t = terms.first[output]; t < terms.first[output + 1]; ++t) {
      const std::int64_t at = from + terms.index[t] * inner;
      const float weight = terms.weight[t];
      if constexpr (kLanes == kWide) {
        const WideFloats input = load_wide(x, at);
        for (int l = 0; l < kWide; ++l) sum.values[l] += weight * input.values[l];
      } else {
        sum.values[0] += weight * x[at];
      }
    }
    if constexpr (kLanes == kWide) {
      store_wide(y, i, sum);
    } else {
      y[i] = sum.values[0];
    }
  }
}

}  // namespace

void launch_resample(const Resample& work, const ConstFloatView& x, const FloatView& y,
                     const CudaQueue& queue) {
  const std::int64_t count = work.outer * work.outputs * work.inner;
  if (count == 0) return;
  if (work.inner % kWide == 0 && moves_wide(x.data) && moves_wide(y.data)) {
    PT_LAUNCH(resample<kWide>, blocks_for(count / kWide, queue), kBlock, queue.stream, work, x, y);
  } else {
    PT_LAUNCH(resample<1>, blocks_for(count, queue), kBlock, queue.stream, work, x, y);
  }
}

}  // namespace pipetrain::resize
