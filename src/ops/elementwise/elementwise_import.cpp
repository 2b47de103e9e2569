// Imports ONNX's element-wise operators as canonical ones. Many of the rarer ones are compositions.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/elementwise/elementwise.h"

namespace pipetrain::elementwise {
namespace {

/// The operator of the same name, without attributes.
void import_same(ImportContext& context) {
  std::vector<ValueId> inputs;
  for (std::size_t i = 0; i < context.input_count(); ++i) inputs.push_back(context.input(i));
  context.set_output(0, context.builder().add(context.op_type(), std::move(inputs)));
}

/// The operator of the same name with real attributes of the given defaults.
ValueId add_with_reals(ImportContext& context, std::string_view op,
                       std::initializer_list<std::pair<std::string_view, double>> defaults) {
  Attributes attributes;
  for (const auto& [name, fallback] : defaults) {
    attributes.set(std::string(name), context.attributes().real(name, fallback));
  }
  return context.builder().add(op, {context.input(0)}, std::move(attributes));
}

void import_leaky_relu(ImportContext& context) {
  context.set_output(0, add_with_reals(context, "LeakyRelu", {{"alpha", 0.01}}));
}
void import_elu(ImportContext& context) {
  context.set_output(0, add_with_reals(context, "Elu", {{"alpha", 1}}));
}
void import_hard_sigmoid(ImportContext& context) {
  context.set_output(0, add_with_reals(context, "HardSigmoid", {{"alpha", 0.2}, {"beta", 0.5}}));
}

ValueId scalar_like(ImportContext& context, std::size_t input, double value) {
  return context.builder().scalar(value, context.type(input).dtype);
}

// Selu(x) = gamma Elu(x; alpha)
void import_selu(ImportContext& context) {
  const ValueId elu = add_with_reals(context, "Elu", {{"alpha", 1.67326319217681884765625}});
  const double gamma = context.attributes().real("gamma", 1.05070102214813232421875);
  context.set_output(0, context.builder().add("Mul", {elu, scalar_like(context, 0, gamma)}));
}

// Celu(x) = max(0, x) + min(0, alpha (e^(x / alpha) - 1)) = alpha Elu(x / alpha)
void import_celu(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const double factor = context.attributes().real("alpha", 1);
  PT_CHECK(factor > 0, kModel, "the alpha of Celu must be above 0, not {}", factor);
  const ValueId alpha = scalar_like(context, 0, factor);
  const ValueId scaled = builder.add("Div", {context.input(0), alpha});
  context.set_output(0,
                     builder.add("Mul", {builder.add("Elu", {scaled}, {{"alpha", 1.0}}), alpha}));
}

// PRelu(x, s) = x > 0 ? x : s x, of which the backward pass keeps x and a byte for each element.
void import_prelu(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId x = context.input(0);
  const ValueId positive = builder.add("Greater", {x, scalar_like(context, 0, 0)});
  const ValueId scaled = builder.add("Mul", {x, context.input(1)});
  context.set_output(0, builder.add("Where", {positive, x, scaled}));
}

void import_thresholded_relu(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId alpha = scalar_like(context, 0, context.attributes().real("alpha", 1));
  const ValueId above = builder.add("Greater", {context.input(0), alpha});
  context.set_output(0,
                     builder.add("Where", {above, context.input(0), scalar_like(context, 0, 0)}));
}

// Mish(x) = x tanh(softplus(x))
void import_mish(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId gate = builder.add("Tanh", {builder.add("Softplus", {context.input(0)})});
  context.set_output(0, builder.add("Mul", {context.input(0), gate}));
}

void import_softsign(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId absolute = builder.add("Abs", {context.input(0)});
  const ValueId below = builder.add("Add", {absolute, scalar_like(context, 0, 1)});
  context.set_output(0, builder.add("Div", {context.input(0), below}));
}

// Swish(x) = x sigmoid(alpha x)
void import_swish(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const double alpha = context.attributes().real("alpha", 1);
  if (alpha == 1) {
    context.set_output(0, builder.add("Silu", {context.input(0)}));
    return;
  }
  const ValueId scaled = builder.add("Mul", {context.input(0), scalar_like(context, 0, alpha)});
  context.set_output(0, builder.add("Mul", {context.input(0), builder.add("Sigmoid", {scaled})}));
}

void import_gelu(ImportContext& context) {
  const std::string approximate = context.attributes().text("approximate", "none");
  PT_CHECK(approximate == "none" || approximate == "tanh", kModel,
           "Gelu has no approximation \"{}\"", printable(approximate));
  context.set_output(
      0, context.builder().add("Gelu", {context.input(0)}, {{"approximate", approximate}}));
}

bool is_wide_integer(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kUint64; }

// The limits were attributes before opset 11 and are optional inputs since. Limits that depend on
// data become Max and Min, and so do integers of 64 bits, of which attributes would lose digits.
void import_clip(ImportContext& context) {
  constexpr std::array<std::string_view, 2> kNames = {"min", "max"};
  GraphBuilder& builder = context.builder();
  Attributes attributes;
  ValueId x = context.input(0);
  if (context.opset() < 11) {
    for (const std::string_view name : kNames) {
      if (context.attributes().has(name))
        attributes.set(std::string(name), context.attributes().real(name));
    }
  }
  const auto clip = [&] {
    if (!attributes.items().empty()) x = builder.add("Clip", {x}, std::move(attributes));
    attributes = {};
  };
  for (std::size_t i = 0; context.opset() >= 11 && i < 2; ++i) {
    if (!context.has_input(i + 1)) continue;
    const HostTensor limit = context.constant_or_empty(i + 1);
    PT_CHECK(!limit || limit.type().count() == 1, kModel, "the {} of Clip must be a scalar, got {}",
             kNames[i], limit.type().text());
    if (!limit || is_wide_integer(limit.dtype())) {
      const ValueId operand =
          limit ? builder.reshape(context.input(i + 1), Shape{}) : context.input(i + 1);
      clip();  // the maximum goes last
      x = builder.add(i == 0 ? "Max" : "Min", {x, operand});
      continue;
    }
    attributes.set(std::string(kNames[i]), limit.to_doubles()[0]);
  }
  clip();
  context.set_output(0, x);
}

bool has_fractions(const HostTensor& tensor) {
  return std::ranges::any_of(tensor.to_doubles(), [](double x) { return x != std::trunc(x); });
}

// The exponent may have another type than the base. A constant scalar becomes an attribute.
// Integers to the power of fractions are computed in float64, which holds them up to 2^53.
void import_pow(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const TensorType base = context.type(0);
  const TensorType exponent = context.type(1);
  const HostTensor known = context.constant_or_empty(1);
  if (known && exponent.count() == 1 && exponent.shape.rank() <= base.shape.rank() &&
      is_float(base.dtype)) {
    const double value = known.to_doubles()[0];
    if (value == 1) return context.set_output(0, context.input(0));
    if (value == 0.5) return context.set_output(0, builder.add("Sqrt", {context.input(0)}));
    if (value == -1) return context.set_output(0, builder.add("Reciprocal", {context.input(0)}));
    return context.set_output(0,
                              builder.add("PowScalar", {context.input(0)}, {{"exponent", value}}));
  }
  const bool fractions =
      !is_float(base.dtype) && is_float(exponent.dtype) && (!known || has_fractions(known));
  const DType dtype = fractions ? DType::kFloat64 : base.dtype;
  const auto cast = [&](ValueId x, DType to) {
    if (builder.type(x).dtype == to) return x;
    return builder.add("Cast", {x}, {{"to", static_cast<std::int64_t>(to)}});
  };
  const ValueId power =
      builder.add("Pow", {cast(context.input(0), dtype), cast(context.input(1), dtype)});
  context.set_output(0, cast(power, base.dtype));
}

void import_mod(ImportContext& context) {
  const std::int64_t fmod = context.attributes().integer("fmod", 0);
  context.set_output(
      0, context.builder().add("Mod", {context.input(0), context.input(1)}, {{"fmod", fmod}}));
}

/// Max, Min, Sum of any number of inputs, from left to right.
ValueId fold_left(ImportContext& context, std::string_view op) {
  ValueId out = context.input(0);
  for (std::size_t i = 1; i < context.input_count(); ++i)
    out = context.builder().add(op, {out, context.input(i)});
  return out;
}
void import_max_min(ImportContext& context) {
  context.set_output(0, fold_left(context, context.op_type()));
}

ValueId sum_of_inputs(ImportContext& context) {
  bool equal = context.input_count() > 2;
  std::vector<ValueId> inputs;
  for (std::size_t i = 0; i < context.input_count(); ++i) {
    inputs.push_back(context.input(i));
    equal = equal && context.type(i) == context.type(0);
  }
  return equal ? context.builder().add("Sum", std::move(inputs)) : fold_left(context, "Add");
}
void import_sum(ImportContext& context) { context.set_output(0, sum_of_inputs(context)); }
void import_mean(ImportContext& context) {
  const ValueId sum = sum_of_inputs(context);
  const ValueId count = scalar_like(context, 0, static_cast<double>(context.input_count()));
  context.set_output(0, context.builder().add("Div", {sum, count}));
}

/// The probability that x, the comparison of a uniform random number with a constant, is true;
/// absent when x is something else. Stochastic depth is exported like that.
ValueId probability_of(GraphBuilder& builder, ValueId x) {
  const Graph& graph = builder.graph();
  const auto made_by = [&](ValueId id, std::string_view op) -> const Node* {
    if (!id || !graph[id].producer) return nullptr;
    const Node& node = graph[graph[id].producer];
    return node.op->name == op ? &node : nullptr;
  };
  const Node* less = made_by(x, "Less");
  const Node* uniform = less ? made_by(less->inputs[0], "RandomUniform") : nullptr;
  if (!uniform || uniform->attributes.real("low", 0) != 0 ||
      uniform->attributes.real("high", 1) != 1 || graph[less->inputs[1]].role != Role::kConstant) {
    return {};
  }
  const Shape shape = graph[x].type.shape;
  const ValueId p = builder.add("Clip", {less->inputs[1]}, {{"min", 0.0}, {"max", 1.0}});
  return builder.add("Expand", {p}, {{"shape", shape.dims()}});
}

// All floating-point values of the graph are float32, whatever the file has. In evaluation a random
// choice is replaced by its probability.
void cast_to(ImportContext& context, DType to) {
  if (is_float(to)) to = DType::kFloat32;
  const bool drops = context.mode().training && context.mode().dropout;
  if (!drops && to == DType::kFloat32) {
    if (const ValueId p = probability_of(context.builder(), context.input(0))) {
      return context.set_output(0, p);
    }
  }
  if (context.type(0).dtype == to) return context.set_output(0, context.input(0));
  context.set_output(0, context.builder().add("Cast", {context.input(0)},
                                              {{"to", static_cast<std::int64_t>(to)}}));
}
void import_cast(ImportContext& context) {
  cast_to(context, static_cast<DType>(context.attributes().integer("to")));
}
void import_cast_like(ImportContext& context) { cast_to(context, context.type(1).dtype); }

void import_is_inf(ImportContext& context) {
  PT_CHECK(is_float(context.type(0).dtype), kModel, "IsInf takes floats, got {}",
           context.type(0).text());
  GraphBuilder& builder = context.builder();
  const ValueId infinity = scalar_like(context, 0, std::numeric_limits<double>::infinity());
  const bool positive = context.attributes().integer("detect_positive", 1) != 0;
  const bool negative = context.attributes().integer("detect_negative", 1) != 0;
  ValueId x = context.input(0);
  if (!positive && !negative) return context.set_output(0, builder.add("Less", {x, x}));  // never
  if (positive && negative) x = builder.add("Abs", {x});
  if (!positive) x = builder.add("Neg", {x});
  context.set_output(0, builder.add("Equal", {x, infinity}));
}

// x - bias above lambd, x + bias below -lambd, 0 between. Integers are above 2.5 where they are
// above 2.
void import_shrink(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId x = context.input(0);
  const bool whole = !is_float(context.type(0).dtype);
  const double given = context.attributes().real("lambd", 0.5);
  const double lambd = whole ? std::floor(given) : given;
  const ValueId bias = scalar_like(context, 0, context.attributes().real("bias", 0));
  const ValueId below = builder.add("Less", {x, scalar_like(context, 0, -lambd)});
  const ValueId above = builder.add("Greater", {x, scalar_like(context, 0, lambd)});
  const ValueId rest =
      builder.add("Where", {above, builder.add("Sub", {x, bias}), scalar_like(context, 0, 0)});
  context.set_output(0, builder.add("Where", {below, builder.add("Add", {x, bias}), rest}));
}

// All bits flipped: x xor -1.
void import_bitwise_not(ImportContext& context) {
  const ValueId ones = context.builder().add(
      "Cast", {context.builder().constant(HostTensor::scalar<std::int64_t>(-1))},
      {{"to", static_cast<std::int64_t>(context.type(0).dtype)}});
  context.set_output(0, context.builder().add("BitwiseXor", {context.input(0), ones}));
}

void import_bit_shift(ImportContext& context) {
  const std::string direction = context.attributes().text("direction", "");
  PT_CHECK(direction == "LEFT" || direction == "RIGHT", kModel, "BitShift has no direction \"{}\"",
           printable(direction));
  context.set_output(0, context.builder().add(direction == "LEFT" ? "ShiftLeft" : "ShiftRight",
                                              {context.input(0), context.input(1)}));
}

// Only constants keep a floating-point type of their own in the file; the graph uses float32 for
// all of them.
void import_bit_cast(ImportContext& context) {
  const std::int64_t to = context.attributes().integer("to");
  const auto dtype = static_cast<DType>(to);
  PT_CHECK(!is_float(dtype) || dtype == DType::kFloat32, kModel,
           "BitCast to element type {} is not supported: floating-point values are float32 here",
           name_of(dtype));
  context.set_output(0, context.builder().add("BitCast", {context.input(0)}, {{"to", to}}));
}

constexpr ImportRule kElementwiseImports[] = {
    {"Abs", import_same},
    {"Acos", import_same},
    {"Acosh", import_same},
    {"Add", import_same},
    {"And", import_same},
    {"Asin", import_same},
    {"Asinh", import_same},
    {"Atan", import_same},
    {"Atanh", import_same},
    {"BitCast", import_bit_cast},
    {"BitShift", import_bit_shift},
    {"BitwiseAnd", import_same},
    {"BitwiseNot", import_bitwise_not},
    {"BitwiseOr", import_same},
    {"BitwiseXor", import_same},
    {"Cast", import_cast},
    {"CastLike", import_cast_like},
    {"Ceil", import_same},
    {"Celu", import_celu},
    {"Clip", import_clip},
    {"Cos", import_same},
    {"Cosh", import_same},
    {"Div", import_same},
    {"Elu", import_elu},
    {"Equal", import_same},
    {"Erf", import_same},
    {"Exp", import_same},
    {"Floor", import_same},
    {"Gelu", import_gelu},
    {"Greater", import_same},
    {"GreaterOrEqual", import_same},
    {"HardSigmoid", import_hard_sigmoid},
    {"HardSwish", import_same},
    {"IsInf", import_is_inf},
    {"IsNaN", import_same},
    {"LeakyRelu", import_leaky_relu},
    {"Less", import_same},
    {"LessOrEqual", import_same},
    {"Log", import_same},
    {"Max", import_max_min},
    {"Mean", import_mean},
    {"Min", import_max_min},
    {"Mish", import_mish},
    {"Mod", import_mod},
    {"Mul", import_same},
    {"Neg", import_same},
    {"Not", import_same},
    {"Or", import_same},
    {"PRelu", import_prelu},
    {"Pow", import_pow},
    {"Reciprocal", import_same},
    {"Relu", import_same},
    {"Round", import_same},
    {"Selu", import_selu},
    {"Sigmoid", import_same},
    {"Shrink", import_shrink},
    {"Sign", import_same},
    {"Sin", import_same},
    {"Sinh", import_same},
    {"Softplus", import_same},
    {"Softsign", import_softsign},
    {"Sqrt", import_same},
    {"Sub", import_same},
    {"Sum", import_sum},
    {"Swish", import_swish},
    {"Tan", import_same},
    {"Tanh", import_same},
    {"ThresholdedRelu", import_thresholded_relu},
    {"Where", import_same},
    {"Xor", import_same},
};

}  // namespace

std::span<const ImportRule> imports() { return kElementwiseImports; }

}  // namespace pipetrain::elementwise
