// What a stream needs of NVIDIA's libraries: one handle of each, for the thread that uses the
// stream.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

namespace pipetrain {

/// Error (kDevice) naming the library and what it was asked for when a call fails.
void cublas_check(cublasStatus_t status, const char* what);
void cudnn_check(cudnnStatus_t status, const char* what);

class CudaLibraries {
 public:
  CudaLibraries() = default;
  ~CudaLibraries();
  CudaLibraries(const CudaLibraries&) = delete;
  CudaLibraries& operator=(const CudaLibraries&) = delete;

  /// Made when first asked for: loading a library's kernels takes time and memory.
  cublasLtHandle_t cublas();
  cudnnHandle_t cudnn(cudaStream_t stream);

 private:
  cublasLtHandle_t cublas_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
};

}  // namespace pipetrain
