// Normalisations, norms of windows and one-hot encodings in terms of canonical operators.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/read_budget.h"
#include "ops/composed/composed.h"
#include "ops/kernel/constant_size.h"

namespace pipetrain::composed {

ValueId square(GraphBuilder& builder, ValueId x) {
  return is_float(builder.type(x).dtype) ? builder.add("PowScalar", {x}, {{"exponent", 2.0}})
                                         : builder.add("Mul", {x, x});
}

ValueId absolute_power(GraphBuilder& builder, ValueId x, double p) {
  if (p == 2) return square(builder, x);
  const ValueId absolute = builder.add("Abs", {x});
  return p == 1 ? absolute : builder.add("PowScalar", {absolute}, {{"exponent", p}});
}

ValueId root(GraphBuilder& builder, ValueId s, double p) {
  if (p == 1) return s;
  const DType dtype = builder.type(s).dtype;
  const ValueId zero = builder.scalar(0, dtype);
  const ValueId is_zero = builder.add("LessOrEqual", {s, zero});  // false for NaN, which stays
  const ValueId safe = builder.add("Where", {is_zero, builder.scalar(1, dtype), s});
  const ValueId root = p == 2 ? builder.add("Sqrt", {safe})
                              : builder.add("PowScalar", {safe}, {{"exponent", 1 / p}});
  return builder.add("Where", {is_zero, zero, root});
}

namespace {

std::int64_t axis_of(const ImportContext& context, std::int64_t fallback) {
  const auto rank = static_cast<std::int64_t>(context.type(0).shape.rank());
  const std::int64_t axis = context.attributes().integer("axis", fallback);
  PT_CHECK(axis >= -rank && axis < rank, kModel, "{} axis {} does not exist in {}",
           context.op_type(), axis, context.type(0).shape.text());
  return axis < 0 ? axis + rank : axis;
}

ValueId reduce(ImportContext& context, std::string_view op, ValueId x, const Ints& axes) {
  return context.builder().add(op, {x}, {{"axes", axes}, {"keepdims", std::int64_t{1}}});
}

double exponent_of(const ImportContext& context) {
  const std::int64_t p = context.attributes().integer("p", 2);
  PT_CHECK(p >= 1, kModel, "{} needs p of at least 1, got {}", context.op_type(), p);
  return static_cast<double>(p);
}

// x / ||x||_p along an axis; 0 where the norm is 0.
void import_lp_normalization(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const double p = exponent_of(context);
  const ValueId x = context.input(0);
  const DType dtype = context.type(0).dtype;
  const ValueId sum =
      reduce(context, "ReduceSum", absolute_power(builder, x, p), {axis_of(context, -1)});
  const ValueId is_zero = builder.add("LessOrEqual", {sum, builder.scalar(0, dtype)});
  const ValueId norm = root(builder, sum, p);
  const ValueId safe = builder.add("Where", {is_zero, builder.scalar(1, dtype), norm});
  context.set_output(0, builder.add("Div", {x, safe}));
}

void import_global_lp_pool(ImportContext& context) {
  const double p = exponent_of(context);
  PT_CHECK(context.type(0).shape.rank() >= 3, kModel,
           "GlobalLpPool needs (N, C, spatial...), got {}", context.type(0).shape.text());
  Ints axes(context.type(0).shape.rank() - 2);
  std::iota(axes.begin(), axes.end(), 2);
  const ValueId powers = absolute_power(context.builder(), context.input(0), p);
  context.set_output(0, root(context.builder(), reduce(context, "ReduceSum", powers, axes), p));
}

// (x - mean) / (deviation + 1e-9) over `axes`
void import_mean_variance_normalization(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Ints axes = context.attributes().ints("axes", {0, 2, 3});
  const ValueId mean = reduce(context, "ReduceMean", context.input(0), axes);
  const ValueId centred = builder.add("Sub", {context.input(0), mean});
  const ValueId variance = reduce(context, "ReduceMean", square(builder, centred), axes);
  const ValueId deviation =
      builder.add("Add", {root(builder, variance, 2), builder.scalar(1e-9, context.type(0).dtype)});
  context.set_output(0, builder.add("Div", {centred, deviation}));
}

// x / (bias + alpha · mean of the squares in a window of `size` channels)^beta
// (Krizhevsky, Sutskever, Hinton 2012). The window is a pooling over the channel axis.
void import_lrn(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  const DType dtype = context.type(0).dtype;
  PT_CHECK(shape.rank() >= 2, kModel, "LRN needs (N, C, ...), got {}", shape.text());
  const std::int64_t size = context.attributes().integer("size");
  PT_CHECK(size >= 1, kModel, "LRN needs a positive size, got {}", size);
  const ValueId x = context.input(0);
  const ValueId squares =
      builder.reshape(square(builder, x), {shape[0], 1, shape[1], shape.count(2, shape.rank())});
  const ValueId mean = builder.add("AveragePool", {squares},
                                   {{"strides", Ints{1, 1}},
                                    {"dilations", Ints{1, 1}},
                                    {"pads", Ints{(size - 1) / 2, 0, size / 2, 0}},
                                    {"kernel", Ints{size, 1}},
                                    {"overhang", Ints{0, 0}},
                                    {"count_include_pad", std::int64_t{1}}});
  const ValueId alpha = builder.scalar(context.attributes().real("alpha", 1e-4), dtype);
  const ValueId bias = builder.scalar(context.attributes().real("bias", 1), dtype);
  const ValueId base = builder.add("Add", {builder.add("Mul", {mean, alpha}), bias});
  const double beta = context.attributes().real("beta", 0.75);
  const ValueId factor = builder.add("PowScalar", {base}, {{"exponent", -beta}});
  context.set_output(0, builder.add("Mul", {x, builder.reshape(factor, shape)}));
}

/// 0, 1, 2 … along `axis` of a tensor of `rank` axes.
ValueId ramp(GraphBuilder& builder, std::int64_t length, std::size_t rank, std::int64_t axis) {
  expect_reasonable({DType::kInt64, Shape{length}});
  ReadBudget::charge(sizeof(std::int64_t) * static_cast<std::size_t>(length));
  std::vector<std::int64_t> values(static_cast<std::size_t>(length));
  std::iota(values.begin(), values.end(), 0);
  std::vector<std::int64_t> dims(rank, 1);
  dims[static_cast<std::size_t>(axis)] = length;
  return builder.constant(HostTensor::of<std::int64_t>(Shape(std::move(dims)), values));
}

// 1 at the first maximum along an axis, 0 elsewhere. Before opset 13 all axes from `axis` on are
// flattened into one.
void import_hardmax(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  ValueId x = context.input(0);
  std::int64_t axis = axis_of(context, context.opset() < 13 ? 1 : -1);
  if (context.opset() < 13) {
    const auto at = static_cast<std::size_t>(axis);
    x = builder.reshape(x, {shape.count(0, at), shape.count(at, shape.rank())});
    axis = 1;
  }
  const Shape flat = builder.shape(x);
  if (flat.count() == 0) return context.set_output(0, context.input(0));
  const ValueId best = builder.add(
      "ArgMax", {x},
      {{"axis", axis}, {"keepdims", std::int64_t{1}}, {"select_last_index", std::int64_t{0}}});
  const ValueId positions = ramp(builder, flat[static_cast<std::size_t>(axis)], flat.rank(), axis);
  const ValueId hit = builder.add("Equal", {best, positions});
  const ValueId ones =
      builder.add("Cast", {hit}, {{"to", static_cast<std::int64_t>(context.type(0).dtype)}});
  context.set_output(0, builder.reshape(ones, shape));
}

// values[1] at the index along a new axis, values[0] elsewhere; an index out of range gives off
// values only. Negative indices count from the end. Before opset 11 the standard has them out of
// range, but ONNX Runtime counts them from the end in every version.
void import_one_hot(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const std::int64_t depth = context.scalar(1, "depth");
  PT_CHECK(context.type(2).count() == 2 && depth > 0, kModel,
           "OneHot needs two values and a positive depth");
  std::vector<std::int64_t> dims = context.type(0).shape.dims();
  const auto rank = static_cast<std::int64_t>(dims.size()) + 1;
  std::int64_t axis = context.attributes().integer("axis", -1);
  if (axis < 0) axis += rank;
  PT_CHECK(axis >= 0 && axis < rank, kModel, "axis {} does not exist in rank {}", axis, rank);
  dims.insert(dims.begin() + axis, 1);

  ValueId index = context.input(0);
  if (context.type(0).dtype != DType::kInt64) {
    index = builder.add("Cast", {index}, {{"to", static_cast<std::int64_t>(DType::kInt64)}});
  }
  index = builder.reshape(index, Shape(dims));
  const auto number = [&](std::int64_t value) {
    return builder.constant(HostTensor::scalar<std::int64_t>(value));
  };
  const ValueId negative = builder.add("Less", {index, number(0)});
  index = builder.add("Where", {negative, builder.add("Add", {index, number(depth)}), index});
  const ValueId positions = ramp(builder, depth, static_cast<std::size_t>(rank), axis);
  const ValueId hit = builder.add("Equal", {index, positions});
  const auto value_at = [&](std::int64_t at) {
    const ValueId one = builder.add(
        "Slice", {context.input(2)},
        {{"starts", Ints{at}}, {"ends", Ints{at + 1}}, {"axes", Ints{0}}, {"steps", Ints{1}}});
    return builder.reshape(one, {});
  };
  context.set_output(0, builder.add("Where", {hit, value_at(1), value_at(0)}));
}

constexpr ImportRule kComposedArithmeticImports[] = {
    {"GlobalLpPool", import_global_lp_pool},
    {"Hardmax", import_hardmax},
    {"LRN", import_lrn},
    {"LpNormalization", import_lp_normalization},
    {"MeanVarianceNormalization", import_mean_variance_normalization},
    {"OneHot", import_one_hot},
};

}  // namespace

std::span<const ImportRule> arithmetic_imports() { return kComposedArithmeticImports; }

}  // namespace pipetrain::composed
