// Depthwise convolutions on GPUs.
#include "ops/conv/depthwise_cuda.h"

#include <optional>

#include "graph/op.h"
#include "ops/conv/conv.h"
#include "ops/conv/depthwise_launch_cuda.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"

namespace pipetrain {
namespace {

std::optional<depthwise::Convolution> depthwise_of(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &w = request.inputs[1], &y = request.outputs[0];
  if (x.shape.rank() != 4 || x.layout != Layout::kChannelsLast || y.layout != x.layout ||
      w.shape[1] != 1 || w.shape[0] != x.shape[1] || y.count() == 0)
    return {};
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (type.dtype != DType::kUndefined && !is_stored_float(type.dtype)) return {};
    }
  }
  const Window window = conv_geometry(request.node.attributes, x.shape, w.shape).window;
  const WindowAxis &rows = window[0], &columns = window[1];
  if (rows.kernel != columns.kernel || rows.stride != columns.stride || rows.dilation != 1 ||
      columns.dilation != 1 || rows.kernel > 7 || rows.stride > 2)
    return {};
  const depthwise::Convolution found{x.shape[0],
                                     x.shape[1],
                                     rows.input,
                                     columns.input,
                                     rows.output,
                                     columns.output,
                                     rows.pad_begin,
                                     columns.pad_begin,
                                     static_cast<int>(rows.kernel),
                                     static_cast<int>(rows.stride)};
  if (!depthwise::takes(found)) return {};
  return found;
}

std::unique_ptr<Kernel> make_depthwise(const KernelRequest& request, const CudaQueue& queue) {
  const std::optional<depthwise::Convolution> convolution = depthwise_of(request);
  if (!convolution) return nullptr;
  return make_kernel([convolution = *convolution, queue](std::span<const Tensor> in,
                                                         std::span<const Tensor> out,
                                                         const RunContext&) {
    depthwise::launch(convolution, numbers_at(in, 0), numbers_at(in, 1), numbers_at(in, 2),
                      places_at(out, 0), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {{"Conv", make_depthwise}};

}  // namespace

bool has_depthwise_kernel(const KernelRequest& request) {
  return depthwise_of(request).has_value();
}

std::span<const CudaKernelEntry> conv_cuda_kernels() { return kKernels; }

}  // namespace pipetrain
