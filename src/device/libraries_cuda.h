// What a stream needs of NVIDIA's libraries: one handle of each, for the thread that uses the
// stream, and the plans that were made with it.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <map>
#include <memory>
#include <typeindex>

namespace pipetrain {

/// Error (kDevice) naming the library and what it was asked for when a call fails.
void cublas_check(cublasStatus_t status, const char* what);
void cudnn_check(cudnnStatus_t status, const char* what);

/// Plans of one kind (ops/cuda/library_plans_cuda.h).
class KeptPlans {
 public:
  virtual ~KeptPlans() = default;
  /// Forgets those that nobody has asked for since the last call.
  virtual void forget_unused() = 0;
};

/// One thread at a time, as the stream. Outlives the stream and may serve another one of the same
/// device: the plans of a profile are those of the stages after it.
class CudaLibraries {
 public:
  CudaLibraries() = default;
  ~CudaLibraries();
  CudaLibraries(const CudaLibraries&) = delete;
  CudaLibraries& operator=(const CudaLibraries&) = delete;

  /// Made when first asked for: loading a library's kernels takes time and memory.
  cublasLtHandle_t cublas();
  cudnnHandle_t cudnn();
  template <class Plans>
  Plans& plans() {
    std::unique_ptr<KeptPlans>& kept = plans_[typeid(Plans)];
    if (!kept) kept = std::make_unique<Plans>();
    return static_cast<Plans&>(*kept);
  }

  /// From now on handles put their work into this stream.
  void serve(cudaStream_t stream);
  /// The stream is about to be destroyed: handles let go of it, and of plans that it has not used.
  void leave() noexcept;

 private:
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  std::map<std::type_index, std::unique_ptr<KeptPlans>> plans_;
};

}  // namespace pipetrain
