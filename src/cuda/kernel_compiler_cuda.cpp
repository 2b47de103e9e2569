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

/// The runtime's own functions for code that is loaded: they reach the driver as all of it does.
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
                                                            const char* name) {
  const std::lock_guard lock(mutex_);
  const auto found = made_.find(source);
  if (found != made_.end()) return found->second;
  if (given_up_) return nullptr;
  try {
    auto kernel = std::make_shared<LoadedKernel>(cubin(source), name);
    made_.emplace(source, kernel);
    return kernel;
  } catch (const Error& error) {
    cudaGetLastError();  // it is told here
    given_up_ = true;
    static std::atomic<bool> told = false;  // by whichever GPU came first
    if (!told.exchange(true))
      log_warning("cuda", "element-wise chains run node by node: {}", error.message());
    return nullptr;
  }
}

std::string CudaKernelCompiler::cubin(const std::string& source) {
  if (!nvrtc_) nvrtc_ = std::make_unique<Nvrtc>();
  const std::string key = nvrtc_->fingerprint() + " " + capability_ + "\n" + source;
  if (auto known = cache_.find(key)) return *std::move(known);
  std::string made = nvrtc_->compile(source, capability_);
  cache_.put(key, made);
  return made;
}

}  // namespace pipetrain
