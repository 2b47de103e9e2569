// Compiles kernels by NVRTC, keeps them in the cache of the user, and loads them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/byte_cache.h"
#include "cuda/nvrtc_cuda.h"
#include "device/kernel_compiler_cuda.h"

namespace pipetrain {

/// The compiler of one GPU. Without NVRTC, or where a kernel is refused, a warning says so once and
/// there are no compiled kernels from then on.
class CudaKernelCompiler final : public KernelCompiler {
 public:
  /// `capability`: "90"
  explicit CudaKernelCompiler(std::string capability);
  std::shared_ptr<CompiledKernel> compile(const std::string& source, const char* name) override;

 private:
  std::string cubin(const std::string& source);

  std::string capability_;
  ByteCache cache_;
  std::mutex mutex_;
  std::unique_ptr<Nvrtc> nvrtc_;
  bool given_up_ = false;
  std::map<std::string, std::shared_ptr<CompiledKernel>> made_;  // by source
};

}  // namespace pipetrain
