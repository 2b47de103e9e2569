// Matrix products by cuBLASLt, with their epilogue where it has a kernel for both. Sums are always
// float32.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "graph/op.h"
#include "ops/cuda/library_kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/elementwise/elementwise_list_cuda.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/matmul_descriptors_cuda.h"

namespace pipetrain {
namespace {

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

class MatMulKernel final : public Kernel {
 public:
  MatMulKernel(const MatMulPlan& plan, const KernelRequest& request, const CudaQueue& queue)
      : plan_(plan),
        epilogue_(product_epilogue(request)),
        result_type_(request.outputs[0].dtype),
        queue_(queue),
        handle_(queue.libraries->cublas()),
        descriptors_(plan, request, queue.tensor_floats) {
    whole_ = epilogue_.by_library && !splits_k() && choose(epilogue_, /*whole=*/true);
    library_adds_bias_ = epilogue_.bias && (whole_ || choose(epilogue_, /*whole=*/false));
    // add_bias() takes rows that follow each other.
    const bool adds_bias = epilogue_.bias && !library_adds_bias_;
    is_there_ = whole_ || library_adds_bias_ ||
                (!(adds_bias && request.outputs[0].layout == Layout::kPaddedRows) &&
                 choose(ProductEpilogue(), /*whole=*/false));
    // The library adds a bias of the result's type only.
    if (library_adds_bias_ && request.inputs[2].dtype != result_type_)
      bias_bytes_ = rounded_up(static_cast<std::size_t>(plan.n) * size_of(result_type_));
  }

  /// Whether the library has a kernel for the product, with or without its epilogue.
  bool is_there() const { return is_there_; }

  void run(std::span<const Tensor> in, std::span<const Tensor> out,
           const RunContext& context) override {
    using enum ProductEpilogue::Kind;
    if (library_adds_bias_) descriptors_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias(in, context));
    if (whole_ && epilogue_.kind == kSums)
      descriptors_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, out[1] ? out[1].data : context.workspace);
    if (whole_ && epilogue_.kind == kActivation && epilogue_.keeps) {
      PT_CHECK(out[1], kInternal, "there is no memory for the input of a Gelu");
      descriptors_.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, out[1].data);
    }
    const Tensor& result = whole_ ? out[0] : product_place(epilogue_, out);
    std::byte* const behind = context.workspace + front_bytes();
    const float one = 1, zero = 0;
    for (std::int64_t product = 0; product < plan_.products(); product += descriptors_.batch()) {
      const auto at = static_cast<std::size_t>(product);
      void* y = element(result, product * plan_.m * plan_.n);
      ProductDescriptors::check(cublasLtMatmul(
          handle_, descriptors_.operation(), &one, element(in[1], plan_.b_offsets[at]),
          descriptors_.b(), element(in[0], plan_.a_offsets[at]), descriptors_.a(), &zero, y,
          descriptors_.y(), y, descriptors_.y(), &choice_.algo, behind, choice_.workspaceSize,
          queue_.stream));
    }
    if (epilogue_.bias && !library_adds_bias_) add_bias(result, in, queue_);
    if (!whole_) finish_product(epilogue_, in, out, behind, queue_);
  }
  std::size_t workspace_bytes() const override {
    return front_bytes() + std::max(choice_.workspaceSize, whole_ ? 0 : finish_bytes(epilogue_));
  }

 private:
  static std::byte* element(const Tensor& tensor, std::int64_t index) {
    return tensor.as<std::byte>() + index * static_cast<std::int64_t>(size_of(tensor.type.dtype));
  }

  /// Whether the result has too few tiles for all multiprocessors, so that the library should split
  /// the sums, which it does not with sums of an operand: a weight gradient of 384 x 96 over
  /// 200,000 rows takes 972 us with and 65 us without them on an H100.
  bool splits_k() const {
    constexpr std::int64_t kTile = 128, kLong = 4096;
    const std::int64_t tiles =
        (plan_.m + kTile - 1) / kTile * ((plan_.n + kTile - 1) / kTile) * plan_.products();
    return epilogue_.kind == ProductEpilogue::Kind::kSums && plan_.k >= kLong &&
           2 * tiles <= queue_.multiprocessors;
  }
  /// Selects a kernel of the library; false if it has none.
  bool choose(const ProductEpilogue& epilogue, bool whole) {
    descriptors_.ask_for(epilogue, whole);
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, descriptors_.operation(), descriptors_.b(), descriptors_.a(), descriptors_.y(),
        descriptors_.y(), descriptors_.preference(), 1, &choice_, &found);
    // Unsupported products are not an error: there is a fallback.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
      return false;
    ProductDescriptors::check(status);
    return found > 0 && choice_.state == CUBLAS_STATUS_SUCCESS;
  }

  /// Workspace for the converted bias, or for unused results of an epilogue.
  std::size_t front_bytes() const {
    if (!whole_) return bias_bytes_;
    if (epilogue_.kind == ProductEpilogue::Kind::kSums)
      return rounded_up(static_cast<std::size_t>(epilogue_.sums.kept) * sizeof(float));
    return bias_bytes_;
  }

  /// The bias in the type of the result.
  void* bias(std::span<const Tensor> in, const RunContext& context) const {
    if (bias_bytes_ == 0) return in[2].data;
    elementwise::launch_restore(
        numbers_at(in, 2), FloatView(context.workspace, stored_as(result_type_)), plan_.n, queue_);
    return context.workspace;
  }

  MatMulPlan plan_;
  ProductEpilogue epilogue_;
  DType result_type_;
  std::size_t bias_bytes_ = 0;  // of the workspace, for the converted bias
  CudaQueue queue_;
  cublasLtHandle_t handle_;
  ProductDescriptors descriptors_;
  bool is_there_ = false;
  bool whole_ = false;              // the library computes the epilogue
  bool library_adds_bias_ = false;  // with or without the epilogue
  cublasLtMatmulHeuristicResult_t choice_{};
};

/// Takes the padding of operands for numbers where it adds zeros, or fills the padding of the
/// result: kernels for tensor cores read and write groups of eight, and the library's others are
/// slow (95 instead of 600 Tflop/s for the 50,257 classes of GPT-2 on an H200).
void take_padding(const KernelRequest& request, MatMulPlan& plan) {
  const TensorType &a = request.inputs[0], &b = request.inputs[1], &y = request.outputs[0];
  const auto is_padded = [](const TensorType& type) { return type.layout == Layout::kPaddedRows; };
  if (!is_padded(b) || b.shape.rank() != 2) return;
  if (is_padded(y)) plan.n = plan.trans_b ? b.padded_rows() : b.row_stride();
  if (is_padded(a) && !plan.trans_a) plan.k = plan.trans_b ? b.row_stride() : b.padded_rows();
}

}  // namespace

std::unique_ptr<Kernel> make_matmul_cuda(const KernelRequest& request, const CudaQueue& queue) {
  if (!is_row_major(request) && !takes_padded_rows(request)) return nullptr;
  const DType operands = request.inputs[0].dtype, result = request.outputs[0].dtype;
  const bool bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  if (!is_stored_float(operands) || request.inputs[1].dtype != operands) return nullptr;
  if (result != operands && result != DType::kFloat32) return nullptr;
  if (bias && !is_stored_float(request.inputs[2].dtype)) return nullptr;
  MatMulPlan plan = matmul_plan(request);
  if (plan.products() == 0 || plan.m * plan.n * plan.k == 0) return nullptr;
  if (!bias && request.node.op->name == "MatMul" &&
      product_epilogue(request).kind == ProductEpilogue::Kind::kNone)
    take_padding(request, plan);
  auto kernel = std::make_unique<MatMulKernel>(plan, request, queue);
  if (kernel->is_there()) return kernel;
  log_warning("gpu", "{} runs without cuBLASLt, which has no kernel for a product of {} x {} x {}",
              printable(request.node.name), plan.m, plan.n, plan.k);
  return nullptr;
}

}  // namespace pipetrain
