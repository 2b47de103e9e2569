// Reductions over axes, and SumTo, the gradient of broadcasting.
#include "ops/reduce/reduce.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/composed/composed.h"
#include "ops/registry/all_ops.h"

namespace pipetrain {
namespace {

/// The axes of a node, non-negative, ascending, unique.
Ints resolve_axes(const Attributes& attributes, std::size_t rank) {
  Ints axes = attributes.ints("axes");
  for (std::int64_t& axis : axes) {
    const auto signed_rank = static_cast<std::int64_t>(rank);
    PT_CHECK(axis >= -signed_rank && axis < signed_rank, kModel,
             "axis {} does not exist in rank {}", axis, rank);
    if (axis < 0) axis += signed_rank;
  }
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

Shape reduced_shape(const Shape& shape, const Ints& axes, bool keep) {
  std::vector<std::int64_t> dims;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(axis))) {
      dims.push_back(shape[axis]);
    } else if (keep) {
      dims.push_back(1);
    }
  }
  return Shape(std::move(dims));
}

/// Any type; ReduceMax and ReduceMin take bool as well.
void infer_extreme(InferContext& context) {
  PT_CHECK(context.inputs.size() == 1, kModel, "expected 1 input, got {}", context.inputs.size());
  const TensorType& x = context.inputs[0];
  PT_CHECK(x.dtype != DType::kUndefined, kModel, "an input is absent");
  const Ints axes = resolve_axes(context.attributes, x.shape.rank());
  context.outputs = {{x.dtype, reduced_shape(x.shape, axes, context.attributes.flag("keepdims"))}};
}

void infer_reduce(InferContext& context) {
  infer_extreme(context);
  PT_CHECK(context.inputs[0].dtype != DType::kBool, kModel, "expected a numeric type, got {}",
           context.inputs[0].text());
}

void infer_arg(InferContext& context) {
  PT_CHECK(context.inputs.size() == 1, kModel, "expected 1 input, got {}", context.inputs.size());
  const TensorType& x = context.inputs[0];
  Attributes axes{{"axes", Ints{context.attributes.integer("axis")}}};
  const Ints resolved = resolve_axes(axes, x.shape.rank());
  context.outputs = {
      {DType::kInt64, reduced_shape(x.shape, resolved, context.attributes.flag("keepdims"))}};
  PT_CHECK(x.count() > 0 || context.outputs[0].count() == 0, kModel,
           "cannot take the maximum or minimum of an empty range of {}", x.text());
}

void infer_sum_to(InferContext& context) {
  PT_CHECK(context.inputs.size() == 1, kModel, "expected 1 input, got {}", context.inputs.size());
  const Shape to(context.attributes.ints("shape"));
  axes_of_sum_to(context.inputs[0].shape, to);
  context.outputs = {{context.inputs[0].dtype, to}};
}

Cost one_per_input_element(const Attributes&, std::span<const TensorType> inputs,
                           std::span<const TensorType>) {
  return {static_cast<double>(inputs[0].count())};
}

/// A value of the output's shape, with the reduced axes present as 1 so that it broadcasts over the
/// input.
ValueId with_axes(GradientContext& context, ValueId value) {
  const Shape shape = context.input_type(0).shape;
  const Ints axes = resolve_axes(context.attributes(), shape.rank());
  return context.builder().reshape(value, reduced_shape(shape, axes, /*keep=*/true));
}

ValueId expand_to_input(GradientContext& context, ValueId value) {
  const Shape shape = context.input_type(0).shape;
  if (context.builder().shape(value) == shape) return value;
  return context.builder().add("Expand", {value}, {{"shape", shape.dims()}});
}

void reduce_sum_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  context.set_input_gradient(
      0, expand_to_input(context, with_axes(context, context.output_gradient())));
}

void mean_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const double count = static_cast<double>(context.input_type(0).count()) /
                       static_cast<double>(context.output_type(0).count());
  const DType dtype = context.input_type(0).dtype;
  const ValueId share =
      builder.add("Mul", {context.output_gradient(), builder.scalar(1 / count, dtype)});
  context.set_input_gradient(0, expand_to_input(context, with_axes(context, share)));
}

/// ReduceMax, ReduceMin: equal elements share the gradient.
void extreme_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const DType dtype = context.input_type(0).dtype;
  const Ints axes = resolve_axes(context.attributes(), context.input_type(0).shape.rank());
  const ValueId chosen =
      builder.add("Equal", {context.input(0), with_axes(context, context.output(0))});
  const ValueId mask = builder.add("Cast", {chosen}, {{"to", static_cast<std::int64_t>(dtype)}});
  const ValueId count =
      builder.add("ReduceSum", {mask}, {{"axes", axes}, {"keepdims", std::int64_t{1}}});
  const ValueId share = builder.add("Div", {with_axes(context, context.output_gradient()), count});
  context.set_input_gradient(0, builder.add("Mul", {mask, share}));
}

/// ReduceProd: dy times the product of the other elements, computed from cumulative products from
/// both ends so that zeros are harmless.
void product_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const Shape shape = context.input_type(0).shape;
  const Ints axes = resolve_axes(context.attributes(), shape.rank());
  Ints perm;
  std::int64_t kept = 1;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    if (std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(axis))) continue;
    perm.push_back(static_cast<std::int64_t>(axis));
    kept *= shape[axis];
  }
  perm.insert(perm.end(), axes.begin(), axes.end());
  Ints inverse(perm.size());
  std::vector<std::int64_t> permuted;
  std::int64_t reduced = 1;
  for (std::size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
    permuted.push_back(shape[static_cast<std::size_t>(perm[i])]);
  }
  for (const std::int64_t axis : axes) reduced *= shape[static_cast<std::size_t>(axis)];
  const bool moves = !std::is_sorted(perm.begin(), perm.end());
  ValueId x = context.input(0);
  if (moves) x = builder.add("Transpose", {x}, {{"perm", perm}});
  x = builder.reshape(x, {kept, reduced});
  const auto running = [&](std::int64_t reverse) {
    return builder.add(
        "CumProd", {x},
        {{"axis", std::int64_t{1}}, {"exclusive", std::int64_t{1}}, {"reverse", reverse}});
  };
  ValueId others = builder.add("Mul", {running(0), running(1)});
  others = builder.reshape(others, Shape(permuted));
  if (moves) others = builder.add("Transpose", {others}, {{"perm", inverse}});
  context.set_input_gradient(
      0, builder.add("Mul", {others, with_axes(context, context.output_gradient())}));
}

void sum_to_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  context.set_input_gradient(0, expand_to_input(context, context.output_gradient()));
}

constexpr OpTraits kReduceTraits = {KernelKind::kRows,
                                    {PrecisionRule::kFloat},
                                    LayoutRule::kRowMajor,
                                    {ChunkRule::kWhole},
                                    Fusion::kNever};
constexpr OpTraits kReducePositionsTraits = {KernelKind::kRows,
                                             {PrecisionRule::kFloat},
                                             LayoutRule::kPositions,
                                             {ChunkRule::kWhole},
                                             Fusion::kNever};
constexpr OpTraits kArgMinTraits = {KernelKind::kElementwise,
                                    {PrecisionRule::kFloat},
                                    LayoutRule::kRowMajor,
                                    {ChunkRule::kWhole},
                                    Fusion::kNever};

constexpr OpDef kReduceOps[] = {
    {"ArgMax", kPlain, kReduceTraits, infer_arg, nullptr, one_per_input_element},
    {"ArgMin", kPlain, kArgMinTraits, infer_arg, nullptr, one_per_input_element},
    {"ReduceMax", kPlain, kReducePositionsTraits, infer_extreme, extreme_gradient,
     one_per_input_element},
    {"ReduceMean", kPlain, kReducePositionsTraits, infer_reduce, mean_gradient,
     one_per_input_element},
    {"ReduceMin", kPlain, kReduceTraits, infer_extreme, extreme_gradient, one_per_input_element},
    {"ReduceProd", kPlain, kReduceTraits, infer_reduce, product_gradient, one_per_input_element},
    {"ReduceSum", kPlain, kReducePositionsTraits, infer_reduce, reduce_sum_gradient,
     one_per_input_element},
    {"SumTo", kPlain, kReducePositionsTraits, infer_sum_to, sum_to_gradient, one_per_input_element},
};

// --- import ---

/// The reduced axes: all if none are given; nothing if the node is then a no-op.
Ints axes_of(ImportContext& context) {
  const std::int64_t since = context.op_type() == "ReduceSum" ? 13 : 18;
  const auto rank = static_cast<std::int64_t>(context.type(0).shape.rank());
  Ints axes;
  if (context.opset() >= since && context.has_input(1)) {
    axes = context.constant(1, "axes").to_int64s();
  } else {
    axes = context.attributes().ints("axes", {});
  }
  if (!axes.empty() || context.attributes().flag("noop_with_empty_axes")) return axes;
  for (std::int64_t axis = 0; axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

ValueId reduce(ImportContext& context, std::string_view op, ValueId x, const Ints& axes) {
  if (axes.empty()) return x;
  return context.builder().add(
      op, {x}, {{"axes", axes}, {"keepdims", context.attributes().integer("keepdims", 1)}});
}

void import_reduce(ImportContext& context) {
  const DType dtype = context.type(0).dtype;
  PT_CHECK(context.op_type() != "ReduceMean" || is_float(dtype) || size_of(dtype) >= 4, kModel,
           "ReduceMean takes floats and integers of 32 and 64 bits, got {}",
           context.type(0).text());
  context.set_output(0, reduce(context, context.op_type(), context.input(0), axes_of(context)));
}

void import_l1(ImportContext& context) {
  const ValueId absolute = context.builder().add("Abs", {context.input(0)});
  context.set_output(0, reduce(context, "ReduceSum", absolute, axes_of(context)));
}

ValueId sum_of_squares(ImportContext& context) {
  const ValueId squares = composed::square(context.builder(), context.input(0));
  return reduce(context, "ReduceSum", squares, axes_of(context));
}
void import_sum_square(ImportContext& context) { context.set_output(0, sum_of_squares(context)); }

void expect_floats(const ImportContext& context) {
  PT_CHECK(is_float(context.type(0).dtype), kModel, "{} takes floats, got {}", context.op_type(),
           context.type(0).text());
}

// The gradient of a norm at zero is undefined; it is set to 0.
void import_l2(ImportContext& context) {
  expect_floats(context);
  context.set_output(0, composed::root(context.builder(), sum_of_squares(context), 2));
}
void import_log_sum(ImportContext& context) {
  expect_floats(context);
  const ValueId sum = reduce(context, "ReduceSum", context.input(0), axes_of(context));
  context.set_output(0, context.builder().add("Log", {sum}));
}

// m + ln Σ e^(x - m), m being the maximum. m is only a shift: its gradient contributions cancel.
// Where m is infinite, so is the result; like torch.logsumexp, rows of -inf have gradients of 0.
void import_log_sum_exp(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Ints axes = axes_of(context);
  if (axes.empty()) return context.set_output(0, context.input(0));
  expect_floats(context);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const DType dtype = context.type(0).dtype;
  const auto number = [&](double value) { return builder.scalar(value, dtype); };
  const ValueId maximum =
      builder.add("ReduceMax", {context.input(0)}, {{"axes", axes}, {"keepdims", std::int64_t{1}}});
  const ValueId infinite = builder.add("Equal", {builder.add("Abs", {maximum}), number(kInfinity)});
  const ValueId shift = builder.add("Where", {infinite, number(0), maximum});
  const ValueId below = builder.add("Sub", {context.input(0), shift});
  const ValueId powers = builder.add("Exp", {builder.add("Where", {infinite, number(0), below})});
  const ValueId logarithm = builder.add("Log", {reduce(context, "ReduceSum", powers, axes)});
  const auto reshaped = [&](ValueId value) {
    return builder.reshape(value, builder.shape(logarithm));
  };
  const ValueId sign = builder.add("Greater", {maximum, number(0)});
  const ValueId limit = builder.add("Where", {sign, number(kInfinity), number(-kInfinity)});
  const ValueId sum = builder.add("Add", {logarithm, reshaped(shift)});
  context.set_output(0, builder.add("Where", {reshaped(infinite), reshaped(limit), sum}));
}

void import_arg(ImportContext& context) {
  const Attributes& from = context.attributes();
  context.set_output(
      0, context.builder().add(context.op_type(), {context.input(0)},
                               {{"axis", from.integer("axis", 0)},
                                {"keepdims", from.integer("keepdims", 1)},
                                {"select_last_index", from.integer("select_last_index", 0)}}));
}

constexpr ImportRule kReduceImports[] = {
    {"ArgMax", import_arg},           {"ArgMin", import_arg},
    {"ReduceL1", import_l1},          {"ReduceL2", import_l2},
    {"ReduceLogSum", import_log_sum}, {"ReduceLogSumExp", import_log_sum_exp},
    {"ReduceMax", import_reduce},     {"ReduceMean", import_reduce},
    {"ReduceMin", import_reduce},     {"ReduceProd", import_reduce},
    {"ReduceSum", import_reduce},     {"ReduceSumSquare", import_sum_square},
};

}  // namespace

ReducePlan reduce::plan_of(const KernelRequest& request) {
  const Attributes& attributes = request.node.attributes;
  const Shape& shape = request.inputs[0].shape;
  if (request.node.op->name == "SumTo") {
    return plan_reduction(request.inputs[0],
                          axes_of_sum_to(shape, Shape(attributes.ints("shape"))));
  }
  return plan_reduction(request.inputs[0], resolve_axes(attributes, shape.rank()));
}

reduce::ArgRule reduce::arg_rule(const KernelRequest& request) {
  const Attributes& attributes = request.node.attributes;
  const Shape& shape = request.inputs[0].shape;
  std::int64_t axis = attributes.integer("axis");
  if (axis < 0) axis += static_cast<std::int64_t>(shape.rank());
  const auto at = static_cast<std::size_t>(axis);
  return {shape.count(0, at), shape[at], shape.count(at + 1, shape.rank()),
          request.node.op->name == "ArgMax", attributes.flag("select_last_index")};
}

const OpFamily& reduce_family() {
  static const OpFamily family{"reduce",
                               kReduceOps,
                               kReduceImports,
                               reduce::reference_kernels(),
                               reduce::cpu_kernels(),
                               [](Backend backend, const KernelRequest& request) {
                                 return backend == Backend::kCpu && reduce::adds_bfloat16(request);
                               }};
  return family;
}

}  // namespace pipetrain
