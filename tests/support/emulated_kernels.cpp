#include "support/emulated_kernels.h"

#include <stdexcept>

#include "ops/kernels_cuda.h"
#include "optim/update_cuda.h"

namespace pipetrain::test {
namespace {

/// As narrow as a device can be, so that threads walk over many elements.
constexpr CudaQueue kQueue = {.stream = nullptr, .multiprocessors = 1, .libraries = nullptr};

__global__ void returns_early(float* out) {
  if (threadIdx.x < 3) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void exchanges_early(float* out) {
  if (threadIdx.x < 3) return;
  out[threadIdx.x] = __shfl_xor_sync(PT_FULL_WARP, 1.0F, 1);
}

__global__ void waits_elsewhere(float* out) {
  if (threadIdx.x < 3) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __shfl_xor_sync(PT_FULL_WARP, 1.0F, 1);
  }
}

__global__ void lacks_a_barrier(float* out) {
  __shared__ float shared[64];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x + 100 * blockIdx.x);
  out[64 * blockIdx.x + threadIdx.x] = shared[(threadIdx.x + 1) % 64];
}

std::string words_of(void (*kernel)(float*)) {
  std::vector<float> out(64);
  try {
    PT_LAUNCH(kernel, 1, 32, nullptr, out.data());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

std::unique_ptr<Kernel> make_emulated_kernel(const KernelRequest& request) {
  return make_cuda_kernel(request, kQueue);
}

void set_emulated_order(int order) { emulator::set_order(static_cast<emulator::Order>(order)); }

std::vector<std::string_view> emulated_operators() {
  std::vector<std::string_view> out;
  for (const auto& [op, make] : own_cuda_kernels()) out.push_back(op);
  return out;
}

void emulated_update(std::int64_t step, double gradient_scale, double average_decay,
                     std::span<const DeviceUpdate> parameters) {
  update_cuda(step, gradient_scale, average_decay, parameters, kQueue);
}

bool is_emulated_update(const OptimizerSettings& settings) { return is_updated_on_gpu(settings); }

std::vector<double> emulated_sums_of_squares(std::span<const std::span<const float>> values) {
  std::vector<double> sums(values.size()), scratch(values.size() * Device::kScratch);
  sums_of_squares_cuda(values, sums.data(), scratch.data(), kQueue);
  return sums;
}

std::string emulated_divergence() {
  return words_of(returns_early) + "; " + words_of(exchanges_early) + "; " +
         words_of(waits_elsewhere);
}

bool emulated_order_shows_a_missing_barrier() {
  std::vector<float> results[2];
  for (const int order : {0, 1}) {
    set_emulated_order(order);
    results[order].assign(128, 0.0F);
    PT_LAUNCH(lacks_a_barrier, 2, 64, nullptr, results[order].data());
  }
  set_emulated_order(0);
  return results[0] != results[1];
}

}  // namespace pipetrain::test
