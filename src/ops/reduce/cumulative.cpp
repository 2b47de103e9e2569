// CumSum, CumProd, the gradient of CumProd, and their imports.
#include "ops/reduce/cumulative.h"

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

CumulativeAxis cumulative_axis(const KernelRequest& request) {
  const Shape& shape = request.outputs[0].shape;
  const Attributes& attributes = request.node.attributes;
  const auto axis = static_cast<std::size_t>(attributes.integer("axis"));
  return {shape.count(0, axis), shape[axis], shape.count(axis + 1, shape.rank()),
          attributes.flag("exclusive"), attributes.flag("reverse")};
}

namespace {

void infer(InferContext& context, std::size_t inputs) {
  PT_CHECK(context.inputs.size() == inputs, kModel, "expected {} inputs, got {}", inputs,
           context.inputs.size());
  const TensorType& x = context.inputs[0];
  PT_CHECK(x.dtype != DType::kUndefined && x.dtype != DType::kBool, kModel,
           "expected a numeric type, got {}", x.text());
  PT_CHECK(x.layout == Layout::kRowMajor, kInternal, "{} must be row-major here", x.text());
  const std::int64_t axis = context.attributes.integer("axis");
  PT_CHECK(axis >= 0 && axis < static_cast<std::int64_t>(x.shape.rank()), kModel,
           "axis {} does not exist in {}", axis, x.text());
  PT_CHECK(inputs == 1 || (context.inputs[1] == x && is_float(x.dtype)), kModel,
           "expected equal float types, got {} and {}", x.text(), context.inputs.back().text());
  context.outputs = {x};
}
void infer_one(InferContext& context) { infer(context, 1); }
void infer_cumulative_gradient(InferContext& context) { infer(context, 2); }

void cumsum_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  Attributes attributes = context.attributes();
  attributes.set("reverse", std::int64_t{!attributes.flag("reverse")});
  context.set_input_gradient(
      0, context.builder().add("CumSum", {context.output_gradient()}, std::move(attributes)));
}

void cumprod_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, context.builder().add("CumProdGrad", {context.output_gradient(), context.input(0)},
                               attributes));
}

Cost one_per_element(const Attributes&, std::span<const TensorType>,
                     std::span<const TensorType> outputs) {
  return {static_cast<double>(outputs[0].count())};
}

constexpr OpTraits kCumSumTraits = {KernelKind::kRows,
                                    {PrecisionRule::kFloat},
                                    LayoutRule::kRowMajor,
                                    {ChunkRule::kWhole},
                                    Fusion::kNever};
constexpr OpTraits kCumProdTraits = {KernelKind::kElementwise,
                                     {PrecisionRule::kFloat},
                                     LayoutRule::kRowMajor,
                                     {ChunkRule::kWhole},
                                     Fusion::kNever};

constexpr OpDef kCumulativeOps[] = {
    {"CumProd", kPlain, kCumProdTraits, infer_one, cumprod_gradient, one_per_element},
    {"CumProdGrad", kPlain, kCumProdTraits, infer_cumulative_gradient, nullptr, one_per_element},
    {"CumSum", kPlain, kCumSumTraits, infer_one, cumsum_gradient, one_per_element},
};

void import_cumulative(ImportContext& context) {
  const std::int64_t given = context.scalar(1, "axis");
  const auto rank = static_cast<std::int64_t>(context.type(0).shape.rank());
  PT_CHECK(given >= -rank && given < rank, kModel, "axis {} does not exist in rank {}", given,
           rank);
  context.set_output(
      0, context.builder().add(context.op_type(), {context.input(0)},
                               {{"axis", given < 0 ? given + rank : given},
                                {"exclusive", context.attributes().integer("exclusive", 0)},
                                {"reverse", context.attributes().integer("reverse", 0)}}));
}

constexpr ImportRule kCumulativeImports[] = {{"CumProd", import_cumulative},
                                             {"CumSum", import_cumulative}};

}  // namespace

const OpFamily& cumulative_family() {
  static const OpFamily family{"cumulative", kCumulativeOps, kCumulativeImports,
                               cumulative_reference_kernels(), cumulative_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
