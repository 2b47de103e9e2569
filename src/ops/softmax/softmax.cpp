// Softmax, LogSoftmax, their gradients and imports.
#include "ops/softmax/softmax.h"

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

AxisView view_axis(const Attributes& attributes, const Shape& shape) {
  const auto rank = static_cast<std::int64_t>(shape.rank());
  const std::int64_t axis = attributes.integer("axis");
  PT_CHECK(axis >= -rank && axis < rank, kModel, "axis {} is outside a tensor of shape {}", axis,
           shape.text());
  const auto at = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  return {shape.count(0, at), shape[at], shape.count(at + 1, shape.rank())};
}

namespace {

void infer_forward(InferContext& context) {
  const TensorType& x = context.inputs[0];
  PT_CHECK(is_float(x.dtype), kModel, "Softmax needs a floating-point input, got {}", x.text());
  view_axis(context.attributes, x.shape);
  context.outputs = {{x.dtype, x.shape}};
}

void infer_softmax_gradient(InferContext& context) {
  PT_CHECK(context.inputs[0] == context.inputs[1], kModel,
           "Softmax gradient needs dy and y of one type, got {} and {}", context.inputs[0].text(),
           context.inputs[1].text());
  infer_forward(context);
}

void differentiate_softmax(GradientContext& context) {
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, context.builder().add("SoftmaxGrad", {context.output_gradient(), context.output(0)},
                               attributes));
}

void differentiate_log_softmax(GradientContext& context) {
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, context.builder().add("LogSoftmaxGrad", {context.output_gradient(), context.output(0)},
                               attributes));
}

Cost softmax_cost(const Attributes&, std::span<const TensorType> inputs,
                  std::span<const TensorType>) {
  constexpr double kFlopsPerElement = 5;
  return {kFlopsPerElement * static_cast<double>(inputs[0].count())};
}

constexpr OpTraits kSoftmaxTraits = {KernelKind::kRows,
                                     {PrecisionRule::kFloat},
                                     LayoutRule::kRowMajor,
                                     {ChunkRule::kWhole},
                                     Fusion::kNever};

constexpr OpDef kSoftmaxOps[] = {
    {"LogSoftmax", kPlain, kSoftmaxTraits, infer_forward, differentiate_log_softmax, softmax_cost},
    {"LogSoftmaxGrad", kPlain, kSoftmaxTraits, infer_softmax_gradient, nullptr, softmax_cost},
    {"Softmax", kPlain, kSoftmaxTraits, infer_forward, differentiate_softmax, softmax_cost},
    {"SoftmaxGrad", kPlain, kSoftmaxTraits, infer_softmax_gradient, nullptr, softmax_cost},
};

void import_softmax(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId x = context.input(0);
  const Shape shape = builder.shape(x);
  if (context.opset() >= 13) {
    const Attributes attributes = {{"axis", context.attributes().integer("axis", -1)}};
    context.set_output(0, builder.add(context.op_type(), {x}, attributes));
    return;
  }
  // Before opset 13 all axes from `axis` on are flattened into one.
  const auto rank = static_cast<std::int64_t>(shape.rank());
  const std::int64_t axis = context.attributes().integer("axis", 1);
  PT_CHECK(axis >= -rank && axis <= rank, kModel, "{} axis {} is outside a tensor of shape {}",
           context.op_type(), axis, shape.text());
  const auto at = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  const ValueId rows = builder.reshape(x, Shape{shape.count(0, at), shape.count(at, shape.rank())});
  const ValueId y = builder.add(context.op_type(), {rows}, {{"axis", std::int64_t{1}}});
  context.set_output(0, builder.reshape(y, shape));
}

constexpr ImportRule kSoftmaxImports[] = {{"LogSoftmax", import_softmax},
                                          {"Softmax", import_softmax}};

}  // namespace

const OpFamily& softmax_family() {
  static const OpFamily family = {"softmax", kSoftmaxOps, kSoftmaxImports,
                                  softmax_reference_kernels(), softmax_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
