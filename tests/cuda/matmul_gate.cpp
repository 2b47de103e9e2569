// The cuBLASLt descriptors of products and their epilogues, read back without a GPU. Whether
// cuBLASLt has kernels for them can only be tested on a GPU.
#include <cstdio>
#include <exception>
#include <vector>

#include "cuda/gate_check.h"
#include "ops/matmul/matmul_descriptors_cuda.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

constexpr DType kFloat = DType::kFloat32, kBrain = DType::kBFloat16;

struct Case {
  const char* op;
  Attributes attributes;
  std::vector<TensorType> inputs;
  std::size_t results;
  DType result;
  cublasLtEpilogue_t whole, product;  // with and without the epilogue
  std::int64_t auxiliary;             // leading dimension of the auxiliary result
};

Attributes with(const char* function, const char* approximate) {
  return {{"activation", std::string(function)}, {"approximate", std::string(approximate)}};
}
Attributes summing(std::int64_t operand, bool trans_a) {
  return {{"summed", operand}, {"trans_a", std::int64_t{trans_a}}};
}

template <class T>
T attribute(const ProductDescriptors& descriptors, cublasLtMatmulDescAttributes_t which) {
  T value{};
  std::size_t written = 0;
  ProductDescriptors::check(cublasLtMatmulDescGetAttribute(descriptors.operation(), which, &value,
                                                           sizeof value, &written));
  return value;
}
std::uint32_t reduction_schemes(const ProductDescriptors& descriptors) {
  std::uint32_t mask = 0;
  std::size_t written = 0;
  ProductDescriptors::check(cublasLtMatmulPreferenceGetAttribute(
      descriptors.preference(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask,
      &written));
  return mask;
}
std::uint64_t size(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which) {
  std::uint64_t value = 0;
  std::size_t written = 0;
  ProductDescriptors::check(
      cublasLtMatrixLayoutGetAttribute(layout, which, &value, sizeof value, &written));
  return value;
}

void look_at(const Case& c) {
  Node node;
  node.op = find_op(c.op);
  node.attributes = c.attributes;
  KernelRequest request{node, c.inputs, {}};
  InferContext inferred{c.attributes, c.inputs, {}};
  node.op->infer(inferred);
  request.outputs = inferred.outputs;
  request.outputs.resize(c.results);
  for (TensorType& type : request.outputs) type.dtype = c.result;
  const MatMulPlan plan = matmul_plan(request);
  const ProductEpilogue epilogue = product_epilogue(request);
  ProductDescriptors descriptors(plan, request, /*tensor_floats=*/false);
  const std::string what = std::string(c.op) + " " + c.attributes.to_text();
  for (const bool whole : {true, false}) {
    if (whole && !epilogue.by_library) continue;
    descriptors.ask_for(epilogue, whole);
    const auto asked = attribute<cublasLtEpilogue_t>(descriptors, CUBLASLT_MATMUL_DESC_EPILOGUE);
    check(asked == (whole ? c.whole : c.product), what + ": another epilogue");
    const bool rounds_twice = c.result != kFloat && asked != CUBLASLT_EPILOGUE_DEFAULT;
    check(reduction_schemes(descriptors) == (rounds_twice ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                          : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE),
          what + ": other schemes for split-k");
    if (whole && c.auxiliary > 0)
      check(
          attribute<std::int64_t>(descriptors, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) == c.auxiliary,
          what + ": another distance of columns");
    if (whole && c.auxiliary > 0)
      check(attribute<std::uintptr_t>(descriptors, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) == 64,
            what + ": another alignment of what is written beside it");
    if (epilogue.bias || (whole && epilogue.kind == ProductEpilogue::Kind::kSums))
      check(attribute<std::int32_t>(descriptors, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) ==
                (c.result == kFloat ? CUDA_R_32F : CUDA_R_16BF),
            what + ": another type of the bias");
  }
  check(epilogue.by_library == (c.whole != c.product), what + ": asked for what it has not");
  // Column-major: the result is (n, m).
  check(
      size(descriptors.y(), CUBLASLT_MATRIX_LAYOUT_ROWS) == static_cast<std::uint64_t>(plan.n) &&
          size(descriptors.y(), CUBLASLT_MATRIX_LAYOUT_COLS) == static_cast<std::uint64_t>(plan.m),
      what + ": another result");
  const bool turned =
      attribute<cublasOperation_t>(descriptors, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T;
  check(turned == plan.trans_a, what + ": another order of the second operand");
  // Sums are over the rows of an operand: their number is the number of rows of the result for the
  // library's first operand (our second), of columns for its second.
  if (epilogue.kind == ProductEpilogue::Kind::kSums)
    check(epilogue.sums.kept == (epilogue.summed == 1 ? plan.n : plan.m), what + ": other sums");
}

/// Row strides of operands and results with padded rows.
void look_at_padded_rows() {
  const TensorType hidden{kBrain, {64, 768}}, table{kBrain, {50257, 768}},
      logits{kBrain, {64, 50257}, Layout::kPaddedRows};
  struct Padded {
    const char* op;
    Attributes attributes;
    TensorType a, b, y;
    std::uint64_t a_rows, b_rows, y_rows;
  };
  const TensorType dtable{kFloat, {50257, 768}};
  const Padded cases[] = {
      {"MatMul", {{"trans_b", std::int64_t{1}}}, hidden, table, logits, 768, 768, 50264},
      {"MatMul", {}, logits, table, hidden, 50264, 768, 768},
      {"MatMul", {{"trans_a", std::int64_t{1}}}, logits, hidden, dtable, 50264, 768, 768},
      {"MatMulSums", summing(0, true), logits, hidden, dtable, 50264, 768, 768},
  };
  for (const Padded& c : cases) {
    Node node;
    node.op = find_op(c.op);
    node.attributes = c.attributes;
    const KernelRequest request{node, {c.a, c.b}, {c.y}};
    const std::string what = std::string(c.op) + " " + c.attributes.to_text();
    check(takes_padded_rows(request), what + ": not taken");
    const ProductDescriptors descriptors(matmul_plan(request), request, /*tensor_floats=*/false);
    check(size(descriptors.a(), CUBLASLT_MATRIX_LAYOUT_LD) == c.a_rows, what + ": rows of a");
    check(size(descriptors.b(), CUBLASLT_MATRIX_LAYOUT_LD) == c.b_rows, what + ": rows of b");
    check(size(descriptors.y(), CUBLASLT_MATRIX_LAYOUT_LD) == c.y_rows, what + ": rows of y");
    if (request.node.op->name == "MatMulSums")
      check(product_epilogue(request).sums.reduced_strides[0] == 50264, what + ": rows of sums");
  }
}

/// Operands of float32 are rounded to TF32 where that is allowed, unless the node keeps floats.
void look_at_compute_types() {
  const TensorType square{kFloat, {16, 16}};
  Node node;
  node.op = find_op("MatMul");
  for (const bool keeps : {false, true}) {
    if (keeps) node.attributes.set("keep_float", std::int64_t{1});
    const KernelRequest request{node, {square, square}, {square}};
    for (const bool tensor_floats : {false, true}) {
      const ProductDescriptors descriptors(matmul_plan(request), request, tensor_floats);
      const bool rounded = tensor_floats && !keeps;
      check(attribute<std::int32_t>(descriptors, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) ==
                (rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F),
            "another type of the sums");
    }
  }
}

// One function because it is one table.
int look_at_all() {
  const TensorType x{kBrain, {64, 768}}, w{kBrain, {768, 3072}}, bias{kFloat, {3072}},
      uneven{kBrain, {768, 3070}}, deep{kBrain, {4, 16, 768}}, dy{kBrain, {64, 3072}},
      other{kBrain, {4, 768, 3072}};
  const Case cases[] = {
      {"MatMul", {}, {x, w}, 1, kBrain, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT, 0},
      {"MatMulActivation",
       with("Gelu", "tanh"),
       {deep, w},
       1,
       kBrain,
       CUBLASLT_EPILOGUE_GELU,
       CUBLASLT_EPILOGUE_DEFAULT,
       0},
      {"MatMulActivation",
       with("Gelu", "tanh"),
       {x, w, bias},
       2,
       kBrain,
       CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
       CUBLASLT_EPILOGUE_BIAS,
       3072},
      {"MatMulActivation",
       with("Gelu", "tanh"),
       {x, w},
       2,
       kBrain,
       CUBLASLT_EPILOGUE_GELU_AUX,
       CUBLASLT_EPILOGUE_DEFAULT,
       3072},
      {"MatMulActivation",
       with("Gelu", "tanh"),
       {x, w, bias},
       1,
       kBrain,
       CUBLASLT_EPILOGUE_GELU_BIAS,
       CUBLASLT_EPILOGUE_BIAS,
       0},
      // Not by the library: a Relu, unaligned rows, erf, several products.
      {"MatMulActivation",
       with("Relu", "none"),
       {x, w, bias},
       1,
       kBrain,
       CUBLASLT_EPILOGUE_BIAS,
       CUBLASLT_EPILOGUE_BIAS,
       0},
      {"MatMulActivation",
       with("Gelu", "tanh"),
       {x, uneven},
       2,
       kBrain,
       CUBLASLT_EPILOGUE_DEFAULT,
       CUBLASLT_EPILOGUE_DEFAULT,
       0},
      {"MatMulActivation",
       with("Gelu", "none"),
       {x, w, bias},
       2,
       kBrain,
       CUBLASLT_EPILOGUE_BIAS,
       CUBLASLT_EPILOGUE_BIAS,
       0},
      {"MatMulActivation",
       with("Gelu", "tanh"),
       {deep, other},
       1,
       kBrain,
       CUBLASLT_EPILOGUE_DEFAULT,
       CUBLASLT_EPILOGUE_DEFAULT,
       0},
      {"MatMulSums",
       summing(1, true),
       {x, dy},
       2,
       kFloat,
       CUBLASLT_EPILOGUE_BGRADA,
       CUBLASLT_EPILOGUE_DEFAULT,
       0},
      {"MatMulSums",
       summing(0, true),
       {dy, x},
       2,
       kFloat,
       CUBLASLT_EPILOGUE_BGRADB,
       CUBLASLT_EPILOGUE_DEFAULT,
       0},
  };
  for (const Case& c : cases) look_at(c);
  look_at_padded_rows();
  look_at_compute_types();
  return static_cast<int>(std::size(cases));
}

}  // namespace
}  // namespace pipetrain

int main() {
  try {
    const int count = pipetrain::look_at_all();
    std::printf("products described to cuBLASLt: %d, %d checks\n", count, pipetrain::checks);
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
