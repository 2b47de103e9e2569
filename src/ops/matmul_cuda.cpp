// Matrix products by cuBLASLt. It counts columns first, so a row-major y = a b is asked for as
// y' = b' a': the same memory, and a bias over the columns of y is one over its rows.
#include <cublasLt.h>

#include "base/error.h"
#include "device/libraries_cuda.h"
#include "ops/library_kernels_cuda.h"
#include "ops/matmul.h"

namespace pipetrain {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

template <class T, cublasStatus_t (*destroy)(T)>
class Handle {
 public:
  Handle() = default;
  ~Handle() {
    if (handle_) destroy(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  T* place() { return &handle_; }
  T get() const { return handle_; }

 private:
  T handle_ = nullptr;
};
using Operation = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// The distance between the matrices of successive products; nothing when they do not lie evenly.
bool even_steps(const std::vector<std::int64_t>& offsets, std::int64_t* step) {
  *step = offsets.size() < 2 ? 0 : offsets[1] - offsets[0];
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] - offsets[i - 1] != *step) return false;
  }
  return offsets.empty() || offsets[0] == 0;
}

class MatMulKernel final : public Kernel {
 public:
  MatMulKernel(const MatMulPlan& plan, bool bias, const CudaQueue& queue)
      : plan_(plan), queue_(queue), handle_(queue.libraries->cublas()) {
    std::int64_t a_step = 0, b_step = 0;
    const bool strided = even_steps(plan.a_offsets, &a_step) && even_steps(plan.b_offsets, &b_step);
    batch_ = strided ? plan.products() : 1;
    check(cublasLtMatmulDescCreate(operation_.place(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, plan.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, plan.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    lay_out(b_, plan.trans_b ? plan.k : plan.n, plan.trans_b ? plan.n : plan.k, b_step);
    lay_out(a_, plan.trans_a ? plan.m : plan.k, plan.trans_a ? plan.k : plan.m, a_step);
    lay_out(y_, plan.n, plan.m, plan.m * plan.n);
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.place()));
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(),
                                               CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspaceBytes, sizeof kWorkspaceBytes));
    // Products split along k and added up in any order would not give the same bits every time.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(),
                                               CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &reductions, sizeof reductions));
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, operation_.get(), b_.get(), a_.get(), y_.get(),
                                         y_.get(), preference.get(), 1, &choice_, &found));
    PT_CHECK(found > 0, kDevice, "cuBLASLt has no kernel for a product of {} x {} x {}", plan.m,
             plan.n, plan.k);
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    if (in.size() > 2 && in[2]) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, in[2].data);
    const float one = 1, zero = 0;
    for (std::int64_t product = 0; product < plan_.products(); product += batch_) {
      const auto at = static_cast<std::size_t>(product);
      float* y = out[0].as<float>() + product * plan_.m * plan_.n;
      check(cublasLtMatmul(handle_, operation_.get(), &one, in[1].as<float>() + plan_.b_offsets[at],
                           b_.get(), in[0].as<float>() + plan_.a_offsets[at], a_.get(), &zero, y,
                           y_.get(), y, y_.get(), &choice_.algo, context.workspace,
                           choice_.workspaceSize, queue_.stream));
    }
  }
  std::size_t workspace_bytes() const override { return choice_.workspaceSize; }

 private:
  static void check(cublasStatus_t status) { cublas_check(status, "a matrix product"); }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value));
  }

  /// A matrix that lies column after column.
  void lay_out(MatrixLayout& layout, std::int64_t rows, std::int64_t columns, std::int64_t step) {
    check(cublasLtMatrixLayoutCreate(layout.place(), CUDA_R_32F, static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), rows));
    const auto batch = static_cast<std::int32_t>(batch_);
    check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                           sizeof batch));
    check(cublasLtMatrixLayoutSetAttribute(
        layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step));
  }

  MatMulPlan plan_;
  CudaQueue queue_;
  cublasLtHandle_t handle_;
  std::int64_t batch_ = 1;
  Operation operation_;
  MatrixLayout a_, b_, y_;
  cublasLtMatmulHeuristicResult_t choice_{};
};

}  // namespace

std::unique_ptr<Kernel> make_matmul_cuda(const KernelRequest& request, const CudaQueue& queue) {
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      const bool absent = type.dtype == DType::kUndefined;
      if (!absent && (type.dtype != DType::kFloat32 || type.layout != Layout::kRowMajor))
        return nullptr;
    }
  }
  const MatMulPlan plan = matmul_plan(request);
  if (plan.products() == 0 || plan.m * plan.n * plan.k == 0) return nullptr;
  const bool bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  return std::make_unique<MatMulKernel>(plan, bias, queue);
}

}  // namespace pipetrain
