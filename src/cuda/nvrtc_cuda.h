// NVRTC, which is loaded when the first kernel is to be compiled: the plugin works without it.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace pipetrain {

/// CUDA C++ to the machine code of one GPU. Kernels may include what ops/fused/fused_access_cuda.h
/// does.
class Nvrtc {
 public:
  /// Error (kResource) saying how to get NVRTC when it is not there.
  Nvrtc();

  /// "13.0"
  const std::string& version() const { return version_; }
  /// The cubin for a compute capability ("90"); what the compiler says goes to `log` if there is
  /// one. Error (kDevice) with its words when the source does not compile.
  std::string compile(const std::string& source, const std::string& capability,
                      std::span<const char* const> more_options = {},
                      std::string* log = nullptr) const;
  /// What a cubin depends on beside source and capability.
  std::string fingerprint() const;

 private:
  struct Functions;
  std::shared_ptr<const Functions> functions_;
  std::string version_;
};

}  // namespace pipetrain
