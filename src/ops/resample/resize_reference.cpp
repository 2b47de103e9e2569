// Resampling, term by term.
#include "ops/kernel/type_switch.h"
#include "ops/resample/resize.h"

namespace pipetrain::resize {
namespace {

std::unique_ptr<Kernel> make_resample(const KernelRequest& request) {
  const Resampling work = resampling_of(request);
  std::unique_ptr<Kernel> made;
  visit_float(request.inputs[0].dtype, [&]<class T>(T) {
    made = make_kernel([work](std::span<const Tensor> in, std::span<const Tensor> out,
                              const RunContext&) {
      for (std::int64_t at = 0; at < work.outer * work.outputs * work.inner; ++at) {
        const std::int64_t k = at % work.inner;
        const auto row = static_cast<std::size_t>(at / work.inner % work.outputs);
        const T* x = in[0].as<T>() + at / work.inner / work.outputs * work.inputs * work.inner + k;
        T sum = 0;
        for (auto term = static_cast<std::size_t>(work.map.first[row]);
             term < static_cast<std::size_t>(work.map.first[row + 1]); ++term) {
          sum += static_cast<T>(work.map.weight[term]) * x[work.map.index[term] * work.inner];
        }
        out[0].as<T>()[at] = sum;
      }
    });
  });
  return made;
}

constexpr KernelEntry kResizeReferenceKernels[] = {{"Resample", make_resample},
                                                   {"ResampleGrad", make_resample}};

}  // namespace

std::span<const KernelEntry> reference_kernels() { return kResizeReferenceKernels; }

}  // namespace pipetrain::resize
