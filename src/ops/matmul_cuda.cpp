// Matrix products by cuBLASLt. It counts columns first, so a row-major y = a b is asked for as
// y' = b' a': the same memory, and a bias over the columns of y is one over its rows. Sums are
// float32 whatever is stored.
#include <cublasLt.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "device/libraries_cuda.h"
#include "ops/element_types.h"
#include "ops/elementwise_list_cuda.h"
#include "ops/library_kernels_cuda.h"
#include "ops/matmul.h"
#include "ops/stored_tensor_cuda.h"

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

cudaDataType_t library_type(DType dtype) {
  return dtype == DType::kBFloat16  ? CUDA_R_16BF
         : dtype == DType::kFloat16 ? CUDA_R_16F
                                    : CUDA_R_32F;
}

/// Where tensors begin: what stages and tests promise.
constexpr std::uint32_t kTensorAlignment = 64;

/// What all of these offsets, in elements, leave of that.
std::uint32_t alignment_at(const std::vector<std::int64_t>& offsets, std::size_t element) {
  std::int64_t common = kTensorAlignment;
  for (const std::int64_t offset : offsets)
    common = std::gcd(common, offset * static_cast<std::int64_t>(element));
  return static_cast<std::uint32_t>(common);
}

class MatMulKernel final : public Kernel {
 public:
  MatMulKernel(const MatMulPlan& plan, const KernelRequest& request, const CudaQueue& queue)
      : plan_(plan),
        operand_type_(request.inputs[0].dtype),
        result_type_(request.outputs[0].dtype),
        queue_(queue),
        handle_(queue.libraries->cublas()) {
    const bool bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
    // The library adds a bias of the result's type only.
    if (bias && request.inputs[2].dtype != result_type_)
      bias_bytes_ = (static_cast<std::size_t>(plan.n) * size_of(result_type_) + 255) / 256 * 256;
    bias_count_ = bias ? plan.n : 0;
    std::int64_t a_step = 0, b_step = 0;
    const bool strided = even_steps(plan.a_offsets, &a_step) && even_steps(plan.b_offsets, &b_step);
    batch_ = strided ? plan.products() : 1;
    const bool tensor_floats = queue.tensor_floats && operand_type_ == DType::kFloat32;
    check(cublasLtMatmulDescCreate(
        operation_.place(), tensor_floats ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
        CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, plan.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, plan.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_type(result_type_));
    lay_out(b_, operand_type_, plan.trans_b ? plan.k : plan.n, plan.trans_b ? plan.n : plan.k,
            b_step);
    lay_out(a_, operand_type_, plan.trans_a ? plan.m : plan.k, plan.trans_a ? plan.k : plan.m,
            a_step);
    lay_out(y_, result_type_, plan.n, plan.m, plan.m * plan.n);
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
    // Kernels that read more at once than the addresses allow are none.
    const std::size_t element = size_of(operand_type_);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
           alignment_at(plan.b_offsets, element));
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
           alignment_at(plan.a_offsets, element));
    const std::vector<std::int64_t> results = {plan.products() > batch_ ? plan.m * plan.n : 0};
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(preference, which, alignment_at(results, size_of(result_type_)));
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, operation_.get(), b_.get(), a_.get(), y_.get(),
                                         y_.get(), preference.get(), 1, &choice_, &found));
    PT_CHECK(found > 0, kDevice, "cuBLASLt has no kernel for a product of {} x {} x {}", plan.m,
             plan.n, plan.k);
  }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    if (bias_count_ > 0) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias(in, context));
    const float one = 1, zero = 0;
    for (std::int64_t product = 0; product < plan_.products(); product += batch_) {
      const auto at = static_cast<std::size_t>(product);
      void* y = element(out[0], product * plan_.m * plan_.n);
      check(cublasLtMatmul(handle_, operation_.get(), &one, element(in[1], plan_.b_offsets[at]),
                           b_.get(), element(in[0], plan_.a_offsets[at]), a_.get(), &zero, y,
                           y_.get(), y, y_.get(), &choice_.algo, context.workspace + bias_bytes_,
                           choice_.workspaceSize, queue_.stream));
    }
  }
  std::size_t workspace_bytes() const override { return bias_bytes_ + choice_.workspaceSize; }

 private:
  static void check(cublasStatus_t status) { cublas_check(status, "a matrix product"); }

  static std::byte* element(const Tensor& tensor, std::int64_t index) {
    return tensor.as<std::byte>() + index * static_cast<std::int64_t>(size_of(tensor.type.dtype));
  }

  /// The bias in the type of the result.
  void* bias(std::span<const Tensor> in, const RunContext& context) const {
    if (bias_bytes_ == 0) return in[2].data;
    elementwise::launch_restore(
        numbers_at(in, 2), Places(context.workspace, stored_as(result_type_)), bias_count_, queue_);
    return context.workspace;
  }

  static void prefer(Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
                     std::uint32_t value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value));
  }

  /// A matrix that lies column after column.
  void lay_out(MatrixLayout& layout, DType dtype, std::int64_t rows, std::int64_t columns,
               std::int64_t step) {
    check(cublasLtMatrixLayoutCreate(layout.place(), library_type(dtype),
                                     static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), rows));
    const auto batch = static_cast<std::int32_t>(batch_);
    check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                           sizeof batch));
    check(cublasLtMatrixLayoutSetAttribute(
        layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step));
  }

  MatMulPlan plan_;
  DType operand_type_, result_type_;
  std::size_t bias_bytes_ = 0;  // of the workspace: the bias in another type
  std::int64_t bias_count_ = 0;
  CudaQueue queue_;
  cublasLtHandle_t handle_;
  std::int64_t batch_ = 1;
  Operation operation_;
  MatrixLayout a_, b_, y_;
  cublasLtMatmulHeuristicResult_t choice_{};
};

}  // namespace

std::unique_ptr<Kernel> make_matmul_cuda(const KernelRequest& request, const CudaQueue& queue) {
  if (!is_row_major(request)) return nullptr;
  const DType operands = request.inputs[0].dtype, result = request.outputs[0].dtype;
  const bool bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  if (!is_stored_float(operands) || request.inputs[1].dtype != operands) return nullptr;
  if (result != operands && result != DType::kFloat32) return nullptr;
  if (bias && !is_stored_float(request.inputs[2].dtype)) return nullptr;
  const MatMulPlan plan = matmul_plan(request);
  if (plan.products() == 0 || plan.m * plan.n * plan.k == 0) return nullptr;
  return std::make_unique<MatMulKernel>(plan, request, queue);
}

}  // namespace pipetrain
