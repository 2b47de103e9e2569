// GPU kernels of NVIDIA's libraries (cuBLASLt, cuDNN): matmul, convolution, attention,
// batch normalization.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "device/queue_cuda.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

/// A kernel of cuBLASLt or cuDNN; null when they have none for the node.
std::unique_ptr<Kernel> make_library_kernel(const KernelRequest& request, const CudaQueue& queue);

std::unique_ptr<Kernel> make_matmul_cuda(const KernelRequest& request, const CudaQueue& queue);
std::unique_ptr<Kernel> make_recurrent_product_cuda(const KernelRequest& request,
                                                    const CudaQueue& queue);
std::unique_ptr<Kernel> make_conv_cuda(const KernelRequest& request, const CudaQueue& queue);
/// Attention over narrow types.
std::unique_ptr<Kernel> make_sdpa_cuda(const KernelRequest& request, const CudaQueue& queue);
/// Row-major batch normalization.
std::unique_ptr<Kernel> make_norm_cuda(const KernelRequest& request, const CudaQueue& queue);

/// The fallback of a node that has a hand-written kernel.
inline constexpr std::string_view kByHandWrittenKernel = "runs with a hand-written kernel";
/// Warns that cuDNN has no plan for a node; the first line of `reason` says why. `instead`: the
/// fallback, such as "runs on the CPU".
void warn_of_missing_plan(const KernelRequest& request, std::string_view instead,
                          std::string_view reason);

}  // namespace pipetrain
