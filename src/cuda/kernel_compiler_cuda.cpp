#include "cuda/kernel_compiler_cuda.h"

#include <cuda_runtime.h>

#include <atomic>
#include <utility>

#include "base/cache_directory.h"
#include "base/error.h"
#include "base/log.h"
#include "cuda/device_cuda.h"

namespace pipetrain {
namespace {

constexpr std::uintmax_t kMostCached = std::uintmax_t{64} << 20;

std::filesystem::path kernel_folder() {
  const std::filesystem::path cache = default_cache_directory();
  return cache.empty() ? cache : cache / "kernels";
}

/// Loads code through the CUDA runtime's library API.
class LoadedKernel final : public CompiledKernel {
 public:
  LoadedKernel(const std::string& cubin, const char* name) {
    cuda_check(
        cudaLibraryLoadData(&library_, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "to load a kernel");
    const cudaError_t status = cudaLibraryGetKernel(&kernel_, library_, name);
    if (status != cudaSuccess) cudaLibraryUnload(library_);
    cuda_check(status, "to find a kernel");
  }
  ~LoadedKernel() override { cudaLibraryUnload(library_); }
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  void launch(unsigned blocks, unsigned threads, const void* parameter,
              const CudaQueue& queue) override {
    void* parameters[] = {const_cast<void*>(parameter)};
    cuda_check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel_), blocks, threads, parameters,
                                0, queue.stream),
               "to start a kernel");
  }

 private:
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

}  // namespace

CudaKernelCompiler::CudaKernelCompiler(std::string capability)
    : capability_(std::move(capability)), cache_(kernel_folder(), kMostCached) {}

std::shared_ptr<CompiledKernel> CudaKernelCompiler::compile(const std::string& source,
                                                            const char* name,
                                                            std::string_view node) {
  const std::lock_guard lock(mutex_);
  if (!find_compiler()) return nullptr;
  const auto [found, fresh] = made_.try_emplace(source);
  if (!fresh) return found->second;
  try {
    found->second = std::make_shared<LoadedKernel>(cubin(source), name);
  } catch (const Error& error) {
    cudaGetLastError();  // clears the error, which is reported here
    log_warning("cuda", "{} runs as one kernel per operator: {}", printable(node), error.message());
  }
  return found->second;
}

bool CudaKernelCompiler::find_compiler() {
  if (nvrtc_ || absent_) return !absent_;
  try {
    nvrtc_ = std::make_unique<Nvrtc>();
  } catch (const Error& error) {
    absent_ = true;
    static std::atomic<bool> told = false;  // once per process
    if (!told.exchange(true))
      log_warning("cuda", "element-wise chains run node by node: {}", error.message());
  }
  return !absent_;
}

std::string CudaKernelCompiler::cubin(const std::string& source) {
  const std::string key = nvrtc_->fingerprint() + " " + capability_ + "\n" + source;
  if (auto known = cache_.find(key)) return *std::move(known);
  std::string made = nvrtc_->compile(source, capability_);
  cache_.put(key, made);
  return made;
}

}  // namespace pipetrain
