#include "ops/matmul/matmul_epilogue.h"

#include <algorithm>

#include "base/error.h"
#include "ops/matmul/matmul.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

TensorType product_type(const InferContext& context) {
  const TensorType& a = context.inputs[0];
  const TensorType& b = context.inputs[1];
  PT_CHECK(a.dtype == b.dtype, kModel, "MatMul operands must have one type, got {} and {}",
           a.text(), b.text());
  return {a.dtype, matmul_geometry(context.attributes, a.shape, b.shape).output};
}

void infer_activation(InferContext& context) {
  const TensorType y = product_type(context);
  const std::string activation = context.attributes.text("activation", "");
  PT_CHECK(activation == "Relu" || activation == "Gelu", kModel,
           "MatMulActivation knows no activation \"{}\"", printable(activation));
  if (context.inputs.size() > 2 && context.inputs[2].dtype != DType::kUndefined) {
    PT_CHECK(context.inputs[2].shape == Shape{y.shape[y.shape.rank() - 1]}, kModel,
             "MatMulActivation has no bias {}", context.inputs[2].text());
  }
  context.outputs = {y, y};
}

void infer_sums(InferContext& context) {
  const TensorType y = product_type(context);
  const bool of_a = context.attributes.integer("summed") == 0;
  const TensorType& operand = context.inputs[of_a ? 0 : 1];
  PT_CHECK(operand.shape.rank() == 2 && context.inputs[of_a ? 1 : 0].shape.rank() == 2 &&
               context.attributes.flag(of_a ? "trans_a" : "trans_b") == of_a,
           kModel, "MatMulSums cannot sum {}", operand.text());
  context.outputs = {y, {operand.dtype, Shape{operand.shape[1]}}};
}

Cost product_cost(const Attributes& attributes, std::span<const TensorType> inputs,
                  std::span<const TensorType>) {
  const MatMulGeometry geometry = matmul_geometry(attributes, inputs[0].shape, inputs[1].shape);
  return {2.0 * static_cast<double>(geometry.output.count()) * static_cast<double>(geometry.k)};
}

/// Runs once precision and layouts are chosen.
constexpr OpTraits kMatmulEpilogueTraits = {KernelKind::kProduct,
                                            {PrecisionRule::kFloat},
                                            LayoutRule::kRowMajor,
                                            {ChunkRule::kWhole},
                                            Fusion::kNever};

constexpr OpDef kMatmulEpilogueOps[] = {
    {"MatMulActivation", kPlain, kMatmulEpilogueTraits, infer_activation, nullptr, product_cost},
    {"MatMulSums", kPlain, kMatmulEpilogueTraits, infer_sums, nullptr, product_cost},
};

Attributes transposes_of(const Node& node) {
  return {{"trans_a", std::int64_t{node.attributes.flag("trans_a")}},
          {"trans_b", std::int64_t{node.attributes.flag("trans_b")}}};
}

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Runs the nodes one by one; an unused z is written to the workspace.
std::unique_ptr<Kernel> make_activation(const KernelRequest& request) {
  const Node product = product_of(request.node), activation = activation_of(request.node);
  const TensorType z = request.outputs[0];
  std::shared_ptr<Kernel> first = make_kernel(Backend::kReference, {product, request.inputs, {z}});
  std::shared_ptr<Kernel> second = make_kernel(Backend::kReference, {activation, {z}, {z}});
  const std::size_t most = std::max(first->workspace_bytes(), second->workspace_bytes());
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        Tensor kept{z, context.workspace};
        if (out.size() > 1 && out[1]) kept.data = out[1].data;
        RunContext inner = context;
        inner.workspace += rounded(z.bytes());
        first->run(in, {&kept, 1}, inner);
        second->run({&kept, 1}, out.first(1), inner);
      },
      rounded(z.bytes()) + most);
}

std::unique_ptr<Kernel> make_sums(const KernelRequest& request) {
  Node product, sum;
  product.op = find_op("MatMul");
  product.attributes = transposes_of(request.node);
  sum.op = find_op("ReduceSum");
  sum.attributes = {{"axes", Ints{0}}, {"keepdims", std::int64_t{0}}};
  product.name = sum.name = request.node.name;
  const auto summed = static_cast<std::size_t>(request.node.attributes.integer("summed"));
  std::shared_ptr<Kernel> first =
      make_kernel(Backend::kReference, {product, request.inputs, {request.outputs[0]}});
  std::shared_ptr<Kernel> second =
      make_kernel(Backend::kReference, {sum, {request.inputs.at(summed)}, {request.outputs[1]}});
  const std::size_t most = std::max(first->workspace_bytes(), second->workspace_bytes());
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        if (out[0]) first->run(in, out.first(1), context);
        if (out[1]) second->run(in.subspan(summed, 1), out.subspan(1, 1), context);
      },
      most);
}

constexpr KernelEntry kMatmulEpilogueKernels[] = {{"MatMulActivation", make_activation},
                                                  {"MatMulSums", make_sums}};

}  // namespace

Node product_of(const Node& node) {
  Node out;
  out.op = find_op("MatMul");
  out.attributes = transposes_of(node);
  out.name = node.name;
  return out;
}

Node activation_of(const Node& node) {
  Node out;
  out.op = find_op(node.attributes.text("activation", ""));
  if (node.attributes.has("approximate"))
    out.attributes.set("approximate", node.attributes.text("approximate", "none"));
  out.name = node.name;
  return out;
}

std::span<const KernelEntry> matmul_epilogue_reference_kernels() { return kMatmulEpilogueKernels; }

const OpFamily& matmul_epilogue_family() {
  static const OpFamily family = {
      "matmul epilogues", kMatmulEpilogueOps, {}, matmul_epilogue_reference_kernels(), {}};
  return family;
}

}  // namespace pipetrain
