#include "device/libraries_cuda.h"

#include "base/error.h"

namespace pipetrain {

void cublas_check(cublasStatus_t status, const char* what) {
  PT_CHECK(status == CUBLAS_STATUS_SUCCESS, kDevice, "cuBLASLt failed {}: {}", what,
           cublasLtGetStatusString(status));
}

void cudnn_check(cudnnStatus_t status, const char* what) {
  PT_CHECK(status == CUDNN_STATUS_SUCCESS, kDevice, "cuDNN failed {}: {}", what,
           cudnnGetErrorString(status));
}

CudaLibraries::~CudaLibraries() {
  plans_.clear();  // they belong to the handles
  if (cublas_) cublasLtDestroy(cublas_);
  if (cudnn_) cudnnDestroy(cudnn_);
}

cublasLtHandle_t CudaLibraries::cublas() {
  if (!cublas_) cublas_check(cublasLtCreate(&cublas_), "to start");
  return cublas_;
}

cudnnHandle_t CudaLibraries::cudnn() {
  if (!cudnn_) {
    cudnn_check(cudnnCreate(&cudnn_), "to start");
    cudnn_check(cudnnSetStream(cudnn_, stream_), "to set the stream");
  }
  return cudnn_;
}

void CudaLibraries::serve(cudaStream_t stream) {
  stream_ = stream;
  if (cudnn_) cudnn_check(cudnnSetStream(cudnn_, stream_), "to take a stream");
}

void CudaLibraries::leave() noexcept {
  stream_ = nullptr;
  if (cudnn_) cudnnSetStream(cudnn_, nullptr);
  for (auto& [type, plans] : plans_) plans->forget_unused();
}

}  // namespace pipetrain
