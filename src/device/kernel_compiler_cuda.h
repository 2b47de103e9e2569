// GPU kernels that are compiled at run time (NVRTC).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "device/queue_cuda.h"

namespace pipetrain {

class CompiledKernel {
 public:
  virtual ~CompiledKernel() = default;
  /// Enqueues a launch. `parameter`: the kernel's only one, copied before this returns.
  virtual void launch(unsigned blocks, unsigned threads, const void* parameter,
                      const CudaQueue& queue) = 0;
};

class KernelCompiler {
 public:
  virtual ~KernelCompiler() = default;
  /// The kernel of this name in the source, for `node`; null where it cannot be compiled, which is
  /// logged once. Calls may come from several threads.
  virtual std::shared_ptr<CompiledKernel> compile(const std::string& source, const char* name,
                                                  std::string_view node) = 0;
};

}  // namespace pipetrain
