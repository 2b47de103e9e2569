#include "ops/matmul/matmul_descriptors_cuda.h"

#include <numeric>

namespace pipetrain {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

/// The stride between the matrices of successive products; nothing if it is not constant.
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

/// Guaranteed alignment of tensors.
constexpr std::uint32_t kTensorAlignment = 64;

/// The alignment that remains at all of these offsets (in elements).
std::uint32_t alignment_at(const std::vector<std::int64_t>& offsets, std::size_t element) {
  std::int64_t common = kTensorAlignment;
  for (const std::int64_t offset : offsets)
    common = std::gcd(common, offset * static_cast<std::int64_t>(element));
  return static_cast<std::uint32_t>(common);
}

/// Operands are swapped: the library's first is our second.
cublasLtEpilogue_t library_epilogue(const ProductEpilogue& epilogue) {
  const bool bias = epilogue.bias;
  switch (epilogue.kind) {
    case ProductEpilogue::Kind::kActivation:  // a tanh Gelu
      if (epilogue.keeps)
        return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case ProductEpilogue::Kind::kSums:
      return epilogue.summed == 1 ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
    case ProductEpilogue::Kind::kNone:
      break;
  }
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace

ProductDescriptors::ProductDescriptors(const MatMulPlan& plan, const KernelRequest& request,
                                       bool tensor_floats)
    : result_type_(request.outputs[0].dtype), columns_(plan.n) {
  const DType operands = request.inputs[0].dtype;
  std::int64_t a_step = 0, b_step = 0;
  const bool strided = even_steps(plan.a_offsets, &a_step) && even_steps(plan.b_offsets, &b_step);
  batch_ = strided ? plan.products() : 1;
  const bool rounded =
      tensor_floats && operands == DType::kFloat32 && !request.node.attributes.flag("keep_float");
  check(cublasLtMatmulDescCreate(
      operation_.place(), rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(CUBLASLT_MATMUL_DESC_TRANSA, plan.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, plan.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  lay_out(b_, request.inputs[1], plan.trans_b ? plan.k : plan.n, plan.trans_b ? plan.n : plan.k,
          b_step);
  lay_out(a_, request.inputs[0], plan.trans_a ? plan.m : plan.k, plan.trans_a ? plan.k : plan.m,
          a_step);
  lay_out(y_, request.outputs[0], plan.n, plan.m, plan.m * plan.n);
  check(cublasLtMatmulPreferenceCreate(preference_.place()));
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Excludes kernels that need a larger alignment.
  const std::size_t element = size_of(operands);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_at(plan.b_offsets, element));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_at(plan.a_offsets, element));
  const std::vector<std::int64_t> results = {plan.products() > batch_ ? plan.m * plan.n : 0};
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(which, alignment_at(results, size_of(result_type_)));
}

void ProductDescriptors::ask_for(const ProductEpilogue& epilogue, bool whole) {
  ProductEpilogue wanted = epilogue;
  if (!whole) wanted.kind = ProductEpilogue::Kind::kNone;
  const cublasLtEpilogue_t asked = library_epilogue(wanted);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, asked);
  // Of the schemes for split-k, the one that adds floats in the workspace in a fixed order. It
  // rounds to the type of the result before an epilogue, which rounds again.
  const bool rounds_once = asked == CUBLASLT_EPILOGUE_DEFAULT || result_type_ == DType::kFloat32;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{rounds_once ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                   : CUBLASLT_REDUCTION_SCHEME_NONE});
  // The library writes sums through its bias pointer.
  const bool sums = wanted.kind == ProductEpilogue::Kind::kSums;
  // The library considers the alignment of these addresses when it chooses a kernel.
  void* const somewhere = reinterpret_cast<void*>(std::uintptr_t{kTensorAlignment});
  if (wanted.bias || sums) {
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(library_type(result_type_)));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
  }
  if (wanted.kind == ProductEpilogue::Kind::kActivation && wanted.keeps) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, columns_);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
  }
}

/// A column-major matrix.
void ProductDescriptors::lay_out(MatrixLayout& layout, const TensorType& type, std::int64_t rows,
                                 std::int64_t columns, std::int64_t step) {
  // The library's columns are our rows, which may be padded.
  const std::int64_t leading = type.layout == Layout::kPaddedRows ? type.row_stride() : rows;
  check(cublasLtMatrixLayoutCreate(layout.place(), library_type(type.dtype),
                                   static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), leading));
  const auto batch = static_cast<std::int32_t>(batch_);
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                         sizeof batch));
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &step, sizeof step));
}

}  // namespace pipetrain
