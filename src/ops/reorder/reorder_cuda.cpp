// Reorder on GPUs, between row-major and channels-last feature maps.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/reorder/reorder_launch_cuda.h"

namespace pipetrain::reorder {
namespace {

std::unique_ptr<Kernel> make(const KernelRequest& request, const CudaQueue& queue) {
  const TensorType& x = request.inputs[0];
  const TensorType& y = request.outputs[0];
  const bool last = y.layout == Layout::kChannelsLast;
  const Layout other = last ? x.layout : y.layout;
  if (last == (x.layout == Layout::kChannelsLast) || other != Layout::kRowMajor) return nullptr;
  const bool converts = x.dtype != y.dtype;
  if (converts && (!is_stored_float(x.dtype) || !is_stored_float(y.dtype))) return nullptr;
  const auto size = static_cast<int>(size_of(x.dtype));
  const std::int64_t channels = x.shape[1], positions = x.shape.count(2, x.shape.rank());
  const Matrices shape{x.shape[0], last ? channels : positions, last ? positions : channels};
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        if (converts) {
          launch_transpose(shape, numbers_at(in, 0), places_at(out, 0), queue);
        } else {
          launch_transpose(shape, in[0].data, out[0].data, size, queue);
        }
      });
}

constexpr CudaKernelEntry kKernels[] = {{"Reorder", make}};

}  // namespace
}  // namespace pipetrain::reorder

namespace pipetrain {
std::span<const CudaKernelEntry> reorder_cuda_kernels() { return reorder::kKernels; }
}  // namespace pipetrain
