#include "ops/cuda/library_kernels_cuda.h"

#include "base/error.h"
#include "base/log.h"
#include "graph/op.h"

namespace pipetrain {

std::unique_ptr<Kernel> make_library_kernel(const KernelRequest& request, const CudaQueue& queue) {
  const std::string_view op = request.node.op->name;
  if (op == "MatMul" || op == "MatMulActivation" || op == "MatMulSums")
    return make_matmul_cuda(request, queue);
  if (op == "RecurrentWeightGrad") return make_recurrent_product_cuda(request, queue);
  if (op == "Conv" || op == "ConvInputGrad" || op == "ConvWeightGrad")
    return make_conv_cuda(request, queue);
  if (op == "Attention" || op == "AttentionGrad") return make_sdpa_cuda(request, queue);
  if (op == "BatchNorm" || op == "BatchNormGrad") return make_norm_cuda(request, queue);
  return nullptr;
}

void warn_of_missing_plan(const KernelRequest& request, std::string_view instead,
                          std::string_view reason) {
  log_warning("gpu", "{} ({}) {}, since cuDNN has no plan for it: {}", printable(request.node.name),
              request.node.op->name, instead, printable(reason.substr(0, reason.find('\n'))));
}

}  // namespace pipetrain
