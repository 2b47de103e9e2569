// Handles of cuBLASLt and cuDNN for one stream, and the plans made with them.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <map>
#include <memory>
#include <typeindex>

namespace pipetrain {

/// Error (kDevice) naming the library and the operation when a call fails.
void cublas_check(cublasStatus_t status, const char* what);
void cudnn_check(cudnnStatus_t status, const char* what);

/// Plans of one kind (ops/cuda/library_plans_cuda.h).
class KeptPlans {
 public:
  virtual ~KeptPlans() = default;
  /// Drops plans that were not used since the last call.
  virtual void forget_unused() = 0;
};

/// Used by one thread at a time, like the stream. Outlives the stream and can be reused by another
/// one of the same device, so stages reuse the plans that profiling made.
class CudaLibraries {
 public:
  CudaLibraries() = default;
  ~CudaLibraries();
  CudaLibraries(const CudaLibraries&) = delete;
  CudaLibraries& operator=(const CudaLibraries&) = delete;

  /// Created on first use: loading a library's kernels takes time and memory.
  cublasLtHandle_t cublas();
  cudnnHandle_t cudnn();
  template <class Plans>
  Plans& plans() {
    std::unique_ptr<KeptPlans>& kept = plans_[typeid(Plans)];
    if (!kept) kept = std::make_unique<Plans>();
    return static_cast<Plans&>(*kept);
  }

  /// Binds the handles to this stream.
  void serve(cudaStream_t stream);
  /// Called before the stream is destroyed: unbinds the handles and drops unused plans.
  void leave() noexcept;

 private:
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  std::map<std::type_index, std::unique_ptr<KeptPlans>> plans_;
};

}  // namespace pipetrain
