// NVRTC, loaded when the first kernel is compiled: the plugin works without it.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace pipetrain {

/// Compiles CUDA C++ to machine code of one GPU. Kernels may include the headers that
/// ops/fused/fused_access_cuda.h includes.
class Nvrtc {
 public:
  /// Error (kResource) saying how to get NVRTC when it is missing.
  Nvrtc();

  /// "13.0"
  const std::string& version() const { return version_; }
  /// The cubin for a compute capability ("90"); compiler messages are appended to `log` unless
  /// null. Error (kDevice) with the compiler's message when the source does not compile.
  std::string compile(const std::string& source, const std::string& capability,
                      std::span<const char* const> more_options = {},
                      std::string* log = nullptr) const;
  /// What a cubin depends on besides source and capability.
  std::string fingerprint() const;

 private:
  struct Functions;
  std::shared_ptr<const Functions> functions_;
  std::string version_;
};

}  // namespace pipetrain
