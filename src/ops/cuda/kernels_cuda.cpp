#include "ops/cuda/kernels_cuda.h"

#include "graph/op.h"

namespace pipetrain {

const std::map<std::string_view, MakeCudaKernel>& handwritten_cuda_kernels() {
  static const auto table = [] {
    std::map<std::string_view, MakeCudaKernel> out;
    for (const auto family :
         {attention_cuda_kernels(), batch_norm_cuda_kernels(), conv_cuda_kernels(),
          cumulative_cuda_kernels(), dropout_cuda_kernels(), elementwise_cuda_kernels(),
          fused_cuda_kernels(), gather_cuda_kernels(), layer_norm_cuda_kernels(),
          loss_cuda_kernels(), movement_cuda_kernels(), pool_cuda_kernels(),
          recurrent_cuda_kernels(), reduce_cuda_kernels(), reorder_cuda_kernels(),
          resample_cuda_kernels(), softmax_cuda_kernels()}) {
      for (const CudaKernelEntry& entry : family) out.emplace(entry.op, entry.make);
    }
    return out;
  }();
  return table;
}

std::unique_ptr<Kernel> make_cuda_kernel(const KernelRequest& request, const CudaQueue& queue) {
  const auto found = handwritten_cuda_kernels().find(request.node.op->name);
  return found == handwritten_cuda_kernels().end() ? nullptr : found->second(request, queue);
}

}  // namespace pipetrain
