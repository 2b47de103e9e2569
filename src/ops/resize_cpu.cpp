// Resampling of float32: whole rows of the inner axes are added; along the innermost axis the terms
// are gathered.
#include <omp.h>

#include <algorithm>

#include "ops/resize.h"

namespace pipetrain::resize {
namespace {

/// The map with what the loops need in float32 and 32 bits.
struct Terms {
  std::vector<std::int32_t> first, index;
  std::vector<float> weight;

  explicit Terms(const ResizeMap& map)
      : first(map.first.begin(), map.first.end()),
        index(map.index.begin(), map.index.end()),
        weight(map.weight.begin(), map.weight.end()) {}
};

void resample_rows(const Resampling& work, const Terms& terms, const float* x, float* y) {
  const std::int64_t inner = work.inner;
#pragma omp parallel for schedule(static) if (work.outer * work.outputs * inner > 65536)
  for (std::int64_t row = 0; row < work.outer * work.outputs; ++row) {
    const float* from = x + row / work.outputs * work.inputs * inner;
    const auto output = static_cast<std::size_t>(row % work.outputs);
    float* __restrict to = y + row * inner;
    std::fill_n(to, inner, 0.0F);
    for (auto term = static_cast<std::size_t>(terms.first[output]);
         term < static_cast<std::size_t>(terms.first[output + 1]); ++term) {
      const float weight = terms.weight[term];
      const float* __restrict source = from + terms.index[term] * inner;
      for (std::int64_t i = 0; i < inner; ++i) to[i] += weight * source[i];
    }
  }
}

void resample_innermost(const Resampling& work, const Terms& terms, const float* x, float* y) {
#pragma omp parallel for schedule(static) if (work.outer * work.outputs > 65536)
  for (std::int64_t row = 0; row < work.outer; ++row) {
    const float* __restrict from = x + row * work.inputs;
    float* __restrict to = y + row * work.outputs;
    std::int32_t term = 0;
    for (std::int64_t i = 0; i < work.outputs; ++i) {
      float sum = 0;
      const std::int32_t last = terms.first[static_cast<std::size_t>(i) + 1];
      for (; term < last; ++term) {
        const auto at = static_cast<std::size_t>(term);
        sum += terms.weight[at] * from[terms.index[at]];
      }
      to[i] = sum;
    }
  }
}

std::unique_ptr<Kernel> make_resample(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  const Resampling work = resampling_of(request);
  return make_kernel([work, terms = Terms(work.map)](std::span<const Tensor> in,
                                                     std::span<const Tensor> out,
                                                     const RunContext&) {
    if (work.inner > 1) return resample_rows(work, terms, in[0].as<float>(), out[0].as<float>());
    resample_innermost(work, terms, in[0].as<float>(), out[0].as<float>());
  });
}

constexpr KernelEntry kKernels[] = {{"Resample", make_resample}, {"ResampleGrad", make_resample}};

}  // namespace

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::resize
