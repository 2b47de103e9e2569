// Compiles kernels with NVRTC, caches them in the user's cache directory, and loads them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/byte_cache.h"
#include "cuda/nvrtc_cuda.h"
#include "device/kernel_compiler_cuda.h"

namespace pipetrain {

/// The compiler of one GPU. Where NVRTC cannot be loaded (PIPETRAIN_NVRTC), there are no compiled
/// kernels, and a warning is logged once; if a single kernel cannot be compiled or loaded, a
/// warning names its node.
class CudaKernelCompiler final : public KernelCompiler {
 public:
  /// `capability`: "90"
  explicit CudaKernelCompiler(std::string capability);
  std::shared_ptr<CompiledKernel> compile(const std::string& source, const char* name,
                                          std::string_view node) override;

 private:
  bool find_compiler();
  std::string cubin(const std::string& source);

  std::string capability_;
  ByteCache cache_;
  std::mutex mutex_;
  std::unique_ptr<Nvrtc> nvrtc_;
  bool absent_ = false;                                          // NVRTC cannot be loaded
  std::map<std::string, std::shared_ptr<CompiledKernel>> made_;  // by source; null: failed
};

}  // namespace pipetrain
