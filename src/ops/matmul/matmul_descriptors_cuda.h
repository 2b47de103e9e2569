// The cuBLASLt descriptors of a product. cuBLASLt is column-major, so a row-major y = a b is
// computed as y' = b' a' in the same memory, and a bias over the columns of y is one over its rows.
// Nothing here needs a GPU.
#pragma once

#include <cublasLt.h>

#include "device/libraries_cuda.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_epilogue_cuda.h"

namespace pipetrain {

template <class T, cublasStatus_t (*destroy)(T)>
class LibraryObject {
 public:
  LibraryObject() = default;
  ~LibraryObject() {
    if (object_) destroy(object_);
  }
  LibraryObject(const LibraryObject&) = delete;
  LibraryObject& operator=(const LibraryObject&) = delete;
  T* place() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

class ProductDescriptors {
 public:
  /// `tensor_floats`: operands of float32 may be rounded to TF32, but for nodes that keep floats.
  ProductDescriptors(const MatMulPlan& plan, const KernelRequest& request, bool tensor_floats);

  /// With the whole epilogue, or with at most a bias.
  void ask_for(const ProductEpilogue& epilogue, bool whole);
  /// Error (kDevice) when the library does not know the attribute.
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value));
  }
  static void check(cublasStatus_t status) { cublas_check(status, "a matrix product"); }

  /// Products per call: all of them if their matrices have a constant stride, else one.
  std::int64_t batch() const { return batch_; }
  cublasLtMatmulDesc_t operation() const { return operation_.get(); }
  cublasLtMatrixLayout_t a() const { return a_.get(); }
  cublasLtMatrixLayout_t b() const { return b_.get(); }
  cublasLtMatrixLayout_t y() const { return y_.get(); }
  cublasLtMatmulPreference_t preference() const { return preference_.get(); }

 private:
  using Operation = LibraryObject<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
  using MatrixLayout = LibraryObject<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  using Preference = LibraryObject<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference_.get(), attribute, &value, sizeof value));
  }
  void lay_out(MatrixLayout& layout, const TensorType& type, std::int64_t rows,
               std::int64_t columns, std::int64_t step);

  DType result_type_;
  std::int64_t columns_, batch_ = 1;
  Operation operation_;
  MatrixLayout a_, b_, y_;
  Preference preference_;
};

}  // namespace pipetrain
