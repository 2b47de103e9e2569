// The kernels of GPUs that NVIDIA's libraries bring: matrix products, convolutions,
// attention, norms.
#pragma once

#include <memory>

#include "device/queue_cuda.h"
#include "ops/kernel.h"

namespace pipetrain {

/// A kernel of cuBLASLt or cuDNN; null when they have none for the node.
std::unique_ptr<Kernel> make_library_kernel(const KernelRequest& request, const CudaQueue& queue);

std::unique_ptr<Kernel> make_matmul_cuda(const KernelRequest& request, const CudaQueue& queue);
std::unique_ptr<Kernel> make_recurrent_product_cuda(const KernelRequest& request,
                                                    const CudaQueue& queue);
std::unique_ptr<Kernel> make_conv_cuda(const KernelRequest& request, const CudaQueue& queue);
/// Attention over narrow types.
std::unique_ptr<Kernel> make_sdpa_cuda(const KernelRequest& request, const CudaQueue& queue);
/// Norms by the statistics of what they normalize, but weight gradients of layer norms.
std::unique_ptr<Kernel> make_norm_cuda(const KernelRequest& request, const CudaQueue& queue);

}  // namespace pipetrain
