// The hand-written GPU kernels, beside those of NVIDIA's libraries.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "device/queue_cuda.h"
#include "ops/cuda/kernels_cuda_launch.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Makes a kernel that enqueues its work; null when there is none for the types.
using MakeCudaKernel = std::unique_ptr<Kernel> (*)(const KernelRequest& request,
                                                   const CudaQueue& queue);
struct CudaKernelEntry {
  std::string_view op;
  MakeCudaKernel make;
};

std::span<const CudaKernelEntry> attention_cuda_kernels();
std::span<const CudaKernelEntry> batch_norm_cuda_kernels();
std::span<const CudaKernelEntry> conv_cuda_kernels();
std::span<const CudaKernelEntry> cumulative_cuda_kernels();
std::span<const CudaKernelEntry> dropout_cuda_kernels();
std::span<const CudaKernelEntry> elementwise_cuda_kernels();
std::span<const CudaKernelEntry> fused_cuda_kernels();
std::span<const CudaKernelEntry> gather_cuda_kernels();
std::span<const CudaKernelEntry> layer_norm_cuda_kernels();
std::span<const CudaKernelEntry> loss_cuda_kernels();
std::span<const CudaKernelEntry> movement_cuda_kernels();
std::span<const CudaKernelEntry> pool_cuda_kernels();
std::span<const CudaKernelEntry> recurrent_cuda_kernels();
std::span<const CudaKernelEntry> reduce_cuda_kernels();
std::span<const CudaKernelEntry> reorder_cuda_kernels();
std::span<const CudaKernelEntry> resample_cuda_kernels();
std::span<const CudaKernelEntry> softmax_cuda_kernels();

/// Hand-written kernels by operator.
const std::map<std::string_view, MakeCudaKernel>& handwritten_cuda_kernels();
/// A hand-written kernel; null when there is none.
std::unique_ptr<Kernel> make_cuda_kernel(const KernelRequest& request, const CudaQueue& queue);

/// Enqueues Device::sums_of_squares().
void sums_of_squares_cuda(std::span<const std::span<const float>> values, double* sums,
                          double* scratch, const CudaQueue& queue);

}  // namespace pipetrain
