// Resampling of float32: adds whole rows along outer axes; along the innermost axis it gathers.
#include <omp.h>

#include <algorithm>

#include "ops/resample/resize.h"

namespace pipetrain::resize {
namespace {

/// The map in float32 and 32-bit indices for the loops.
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

/// The map with the same number of terms for every output: term t of output i is at t * outputs +
/// i, so that the loop over outputs is a vector gather.
struct EvenTerms {
  std::int64_t count = 0;
  std::vector<std::int32_t> index;
  std::vector<float> weight;

  explicit EvenTerms(const Terms& terms) {
    const std::size_t outputs = terms.first.size() - 1;
    for (std::size_t i = 0; i < outputs; ++i) {
      count = std::max<std::int64_t>(count, terms.first[i + 1] - terms.first[i]);
    }
    index.assign(static_cast<std::size_t>(count) * outputs, 0);
    weight.assign(index.size(), 0);
    for (std::size_t i = 0; i < outputs; ++i) {
      std::size_t to = i;
      for (auto term = static_cast<std::size_t>(terms.first[i]);
           term < static_cast<std::size_t>(terms.first[i + 1]); ++term, to += outputs) {
        index[to] = terms.index[term];
        weight[to] = terms.weight[term];
      }
    }
  }
};

void resample_innermost(const Resampling& work, const EvenTerms& terms, const float* x, float* y) {
  const std::int64_t outputs = work.outputs;
#pragma omp parallel for schedule(static) if (work.outer * outputs > 65536)
  for (std::int64_t row = 0; row < work.outer; ++row) {
    const float* __restrict from = x + row * work.inputs;
    float* __restrict to = y + row * outputs;
    std::fill_n(to, outputs, 0.0F);
    for (std::int64_t term = 0; term < terms.count; ++term) {
      const std::int32_t* __restrict index = terms.index.data() + term * outputs;
      const float* __restrict weight = terms.weight.data() + term * outputs;
      // Terms that are missing have weight 0, and what they read may be infinite.
      for (std::int64_t i = 0; i < outputs; ++i)
        to[i] += weight[i] == 0 ? 0.0F : weight[i] * from[index[i]];
    }
  }
}

std::unique_ptr<Kernel> make_resample(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  const Resampling work = resampling_of(request);
  const Terms terms(work.map);
  if (work.inner != 1) {
    return make_kernel(
        [work, terms](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          resample_rows(work, terms, in[0].as<float>(), out[0].as<float>());
        });
  }
  return make_kernel([work, terms = EvenTerms(terms)](std::span<const Tensor> in,
                                                      std::span<const Tensor> out,
                                                      const RunContext&) {
    resample_innermost(work, terms, in[0].as<float>(), out[0].as<float>());
  });
}

constexpr KernelEntry kKernels[] = {{"Resample", make_resample}, {"ResampleGrad", make_resample}};

}  // namespace

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::resize
