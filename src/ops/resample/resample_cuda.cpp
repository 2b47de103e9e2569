// Resampling on GPUs, by matrices of up to 2,048 terms.
#include <algorithm>

#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/resample/resample_launch_cuda.h"
#include "ops/resample/resize.h"

namespace pipetrain {
namespace resize {
namespace {

std::unique_ptr<Kernel> make_resample(const KernelRequest& request, const CudaQueue& queue) {
  if (!takes_types(request) || !is_stored_float(request.inputs[0].dtype)) return nullptr;
  const Resampling made = resampling_of(request);
  if (made.outputs > Terms::kMostOutputs || made.inputs > 65'536 ||
      made.map.index.size() > std::size_t{Terms::kMostTerms})
    return nullptr;
  Resample work{made.outer, made.inputs, made.outputs, made.inner, {}};
  std::copy(made.map.first.begin(), made.map.first.end(), work.terms.first);
  std::copy(made.map.index.begin(), made.map.index.end(), work.terms.index);
  std::copy(made.map.weight.begin(), made.map.weight.end(), work.terms.weight);
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        launch_resample(work, numbers_at(in, 0), places_at(out, 0), queue);
      });
}

constexpr CudaKernelEntry kKernels[] = {{"Resample", make_resample},
                                        {"ResampleGrad", make_resample}};

}  // namespace
}  // namespace resize

std::span<const CudaKernelEntry> resample_cuda_kernels() { return resize::kKernels; }

}  // namespace pipetrain
