#include "ops/matmul/matmul_epilogue_cuda.h"

#include "base/error.h"
#include "graph/op.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_epilogue.h"

namespace pipetrain {
namespace {

using Kind = ProductEpilogue::Kind;

/// In each row, auxiliary results of the library must be aligned to 16 bytes.
constexpr std::int64_t kAuxiliaryElements = 8;

bool is_there(const std::vector<TensorType>& types, std::size_t index) {
  return index < types.size() && types[index].dtype != DType::kUndefined;
}

void describe_activation(const KernelRequest& request, std::int64_t columns,
                         ProductEpilogue& epilogue) {
  using namespace elementwise;
  const Node node = activation_of(request.node);
  epilogue.kind = Kind::kActivation;
  epilogue.keeps = is_there(request.outputs, 1);
  visit_unary<float, DeviceMath>(node.op->name, node.attributes, [&](auto f) {
    if constexpr (!std::is_same_v<decltype(f), LibraryFunction<float>>)
      epilogue.function = encode(f, UnaryFunctions());
  });
  const bool by_tanh =
      node.op->name == "Gelu" && node.attributes.text("approximate", "none") == "tanh";
  const bool takes_kept = epilogue.keeps && columns % kAuxiliaryElements == 0 &&
                          request.outputs[1].dtype == request.outputs[0].dtype;
  epilogue.by_library = by_tanh && (!epilogue.keeps || takes_kept);
}

void describe_sums(const KernelRequest& request, ProductEpilogue& epilogue) {
  epilogue.kind = Kind::kSums;
  epilogue.summed = static_cast<int>(request.node.attributes.integer("summed"));
  const Shape& operand = request.inputs.at(static_cast<std::size_t>(epilogue.summed)).shape;
  reduce::ReduceWalk& walk = epilogue.sums;
  walk.kept_dimensions = walk.reduced_dimensions = 1;
  walk.kept = walk.kept_sizes[0] = operand[1];
  walk.kept_strides[0] = 1;
  walk.reduced = walk.reduced_sizes[0] = operand[0];
  walk.reduced_strides[0] =
      request.inputs.at(static_cast<std::size_t>(epilogue.summed)).row_stride();
  epilogue.by_library = is_there(request.outputs, 0) && is_there(request.outputs, 1) &&
                        request.outputs[1].dtype == request.outputs[0].dtype;
}

}  // namespace

ProductEpilogue product_epilogue(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  PT_CHECK(op == "MatMul" || op == "MatMulActivation" || op == "MatMulSums", kInternal,
           "{} is no product", op);
  ProductEpilogue epilogue;
  epilogue.bias = op != "MatMulSums" && is_there(request.inputs, 2);
  const MatMulPlan plan = matmul_plan(request);
  if (op == "MatMulActivation") describe_activation(request, plan.n, epilogue);
  if (op == "MatMulSums") describe_sums(request, epilogue);
  if (plan.products() != 1) epilogue.by_library = false;
  return epilogue;
}

}  // namespace pipetrain
