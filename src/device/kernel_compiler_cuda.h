// Kernels for GPUs whose source is only known when a program runs.
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
  /// Puts a launch into the queue. `parameter`: the kernel's only one, copied before this returns.
  virtual void launch(unsigned blocks, unsigned threads, const void* parameter,
                      const CudaQueue& queue) = 0;
};

class KernelCompiler {
 public:
  virtual ~KernelCompiler() = default;
  /// The kernel of this name in the source, for `node`; null, and said once to the user, where it
  /// cannot be had. Calls may come from several threads.
  virtual std::shared_ptr<CompiledKernel> compile(const std::string& source, const char* name,
                                                  std::string_view node) = 0;
};

}  // namespace pipetrain
