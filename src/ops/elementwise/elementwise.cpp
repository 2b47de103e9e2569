// Element-wise operators: unary functions, arithmetic and comparisons with numpy's broadcasting,
// selection, type conversion, and the gradients that have their own operators.
#include "ops/elementwise/elementwise.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "ops/elementwise/elementwise_list.h"
#include "ops/registry/all_ops.h"

namespace pipetrain {
namespace {

// --- types ---

void expect_inputs(const InferContext& context, std::size_t count) {
  PT_CHECK(context.inputs.size() == count, kModel, "expected {} inputs, got {}", count,
           context.inputs.size());
  for (const TensorType& type : context.inputs) {
    PT_CHECK(type.dtype != DType::kUndefined, kModel, "an input is absent");
  }
}

void infer_float_unary(InferContext& context) {
  expect_inputs(context, 1);
  PT_CHECK(is_float(context.inputs[0].dtype), kModel, "expected a float input, got {}",
           context.inputs[0].text());
  context.outputs = {context.inputs[0]};
}

void infer_number_unary(InferContext& context) {
  expect_inputs(context, 1);
  PT_CHECK(context.inputs[0].dtype != DType::kBool, kModel, "expected a numeric type, got {}",
           context.inputs[0].text());
  context.outputs = {context.inputs[0]};
}

void infer_is_nan(InferContext& context) {
  infer_float_unary(context);
  context.outputs[0].dtype = DType::kBool;
}

void infer_not(InferContext& context) {
  expect_inputs(context, 1);
  PT_CHECK(context.inputs[0].dtype == DType::kBool, kModel, "expected a bool input, got {}",
           context.inputs[0].text());
  context.outputs = {context.inputs[0]};
}

void infer_cast(InferContext& context) {
  expect_inputs(context, 1);
  const auto to = static_cast<DType>(context.attributes.integer("to"));
  PT_CHECK(is_known(to), kModel, "cannot convert to {}", static_cast<int>(to));
  context.outputs = {context.inputs[0]};
  context.outputs[0].dtype = to;
}

/// The gradient operators: (dy, y or x), equal types.
void infer_elementwise_gradient(InferContext& context) {
  expect_inputs(context, 2);
  PT_CHECK(is_float(context.inputs[0].dtype), kModel, "expected a float input, got {}",
           context.inputs[0].text());
  PT_CHECK(context.inputs[0] == context.inputs[1], kModel, "expected equal types, got {} and {}",
           context.inputs[0].text(), context.inputs[1].text());
  context.outputs = {context.inputs[0]};
}

/// The type of a broadcast result; its layout is that of the inputs that have its shape.
TensorType broadcast_type(std::span<const TensorType> inputs, DType dtype) {
  TensorType out{dtype, inputs[0].shape};
  for (const TensorType& type : inputs.subspan(1)) out.shape = broadcast(out.shape, type.shape);
  for (const TensorType& type : inputs) {
    if (type.shape == out.shape && type.layout != Layout::kRowMajor) out.layout = type.layout;
  }
  return out;
}

void infer_arithmetic(InferContext& context) {
  expect_inputs(context, 2);
  PT_CHECK(context.inputs[0].dtype == context.inputs[1].dtype, kModel,
           "expected equal element types, got {} and {}", context.inputs[0].text(),
           context.inputs[1].text());
  PT_CHECK(context.inputs[0].dtype != DType::kBool, kModel, "expected a numeric type, got {}",
           context.inputs[0].text());
  context.outputs = {broadcast_type(context.inputs, context.inputs[0].dtype)};
}

void infer_bits(InferContext& context) {
  infer_arithmetic(context);
  PT_CHECK(!is_float(context.inputs[0].dtype), kModel, "expected integers, got {}",
           context.inputs[0].text());
}

/// The same bits as another type.
void infer_bit_cast(InferContext& context) {
  infer_cast(context);
  PT_CHECK(size_of(context.inputs[0].dtype) == size_of(context.outputs[0].dtype), kModel,
           "the bits of {} do not fit {}", context.inputs[0].text(),
           name_of(context.outputs[0].dtype));
}

void infer_comparison(InferContext& context) {
  expect_inputs(context, 2);
  PT_CHECK(context.inputs[0].dtype == context.inputs[1].dtype, kModel,
           "expected equal element types, got {} and {}", context.inputs[0].text(),
           context.inputs[1].text());
  context.outputs = {broadcast_type(context.inputs, DType::kBool)};
}

void infer_logical(InferContext& context) {
  infer_comparison(context);
  PT_CHECK(context.inputs[0].dtype == DType::kBool, kModel, "expected bool inputs, got {}",
           context.inputs[0].text());
}

void infer_where(InferContext& context) {
  expect_inputs(context, 3);
  PT_CHECK(context.inputs[0].dtype == DType::kBool, kModel, "the condition must be bool, got {}",
           context.inputs[0].text());
  PT_CHECK(context.inputs[1].dtype == context.inputs[2].dtype, kModel,
           "expected equal element types, got {} and {}", context.inputs[1].text(),
           context.inputs[2].text());
  context.outputs = {broadcast_type(context.inputs, context.inputs[1].dtype)};
}

void infer_sum(InferContext& context) {
  PT_CHECK(!context.inputs.empty(), kModel, "expected at least one input");
  expect_inputs(context, context.inputs.size());
  for (const TensorType& type : context.inputs) {
    PT_CHECK(type == context.inputs[0], kModel, "expected equal types, got {} and {}",
             context.inputs[0].text(), type.text());
  }
  context.outputs = {context.inputs[0]};
}

// --- cost: one operation per element; functions count as ten ---

Cost cheap(const Attributes&, std::span<const TensorType>, std::span<const TensorType> outputs) {
  return {static_cast<double>(outputs[0].count())};
}
Cost costly(const Attributes&, std::span<const TensorType>, std::span<const TensorType> outputs) {
  return {10 * static_cast<double>(outputs[0].count())};
}
Cost sum_cost(const Attributes&, std::span<const TensorType> inputs,
              std::span<const TensorType> outputs) {
  return {static_cast<double>(inputs.size() - 1) * static_cast<double>(outputs[0].count())};
}

// --- gradients ---

/// dx = OPGrad(dy, y), with the attributes of the operator.
void from_output(GradientContext& context) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const std::string op(builder.graph()[builder.graph()[context.output(0)].producer].op->name);
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, builder.add(op + "Grad", {context.output_gradient(), context.output(0)}, attributes));
}

/// dx = OPGrad(dy, x), with the attributes of the operator.
void from_input(GradientContext& context) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const std::string op(builder.graph()[builder.graph()[context.output(0)].producer].op->name);
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, builder.add(op + "Grad", {context.output_gradient(), context.input(0)}, attributes));
}

void exp_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  context.set_input_gradient(
      0, context.builder().add("Mul", {context.output_gradient(), context.output(0)}));
}
void log_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  context.set_input_gradient(
      0, context.builder().add("Div", {context.output_gradient(), context.input(0)}));
}
void neg_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  context.set_input_gradient(0, context.builder().add("Neg", {context.output_gradient()}));
}
void abs_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const ValueId sign = context.builder().add("Sign", {context.input(0)});
  context.set_input_gradient(0, context.builder().add("Mul", {context.output_gradient(), sign}));
}
/// Piecewise constant functions: the gradient is zero wherever there is one.
void zero_gradient(GradientContext&) {}

/// dx = dy f(x), with f an operator of one input.
void multiply_by(GradientContext& context, std::string_view function) {
  if (!context.wants(0)) return;
  const ValueId slope = context.builder().add(function, {context.input(0)});
  context.set_input_gradient(0, context.builder().add("Mul", {context.output_gradient(), slope}));
}
void sin_gradient(GradientContext& context) { multiply_by(context, "Cos"); }
void sinh_gradient(GradientContext& context) { multiply_by(context, "Cosh"); }
void cosh_gradient(GradientContext& context) { multiply_by(context, "Sinh"); }
void cos_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const ValueId sine = context.builder().add("Sin", {context.input(0)});
  const ValueId product = context.builder().add("Mul", {context.output_gradient(), sine});
  context.set_input_gradient(0, context.builder().add("Neg", {product}));
}
// y = tan x: dx = dy (1 + y^2)
void tan_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const ValueId square = builder.add("Mul", {context.output(0), context.output(0)});
  const ValueId one = builder.scalar(1, context.output_type(0).dtype);
  context.set_input_gradient(
      0, builder.add("Mul", {context.output_gradient(), builder.add("Add", {square, one})}));
}

/// dx = dy / (constant + factor x^2), or dy / sqrt(constant + factor x^2); factor is 1 or -1.
void divide_by_square(GradientContext& context, double constant, double factor, bool root) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const ValueId square = builder.add("Mul", {context.input(0), context.input(0)});
  const ValueId shift = builder.scalar(constant, context.input_type(0).dtype);
  ValueId below =
      factor > 0 ? builder.add("Add", {square, shift}) : builder.add("Sub", {shift, square});
  if (root) below = builder.add("Sqrt", {below});
  context.set_input_gradient(0, builder.add("Div", {context.output_gradient(), below}));
}
void asin_gradient(GradientContext& context) { divide_by_square(context, 1, -1, /*root=*/true); }
void acos_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  asin_gradient(context);
  context.set_input_gradient(0, context.builder().add("Neg", {context.input_gradients()[0]}));
}
void atan_gradient(GradientContext& context) { divide_by_square(context, 1, 1, /*root=*/false); }
void asinh_gradient(GradientContext& context) { divide_by_square(context, 1, 1, /*root=*/true); }
void acosh_gradient(GradientContext& context) { divide_by_square(context, -1, 1, /*root=*/true); }
void atanh_gradient(GradientContext& context) { divide_by_square(context, 1, -1, /*root=*/false); }
void cast_gradient(GradientContext& context) {
  if (!context.wants(0) || !is_float(context.output_type(0).dtype)) return;
  const auto back = static_cast<std::int64_t>(context.input_type(0).dtype);
  context.set_input_gradient(
      0, context.builder().add("Cast", {context.output_gradient()}, {{"to", back}}));
}

/// Sums a gradient of the broadcast shape down to the shape of input `index`.
void set_broadcast_gradient(GradientContext& context, std::size_t index, ValueId gradient) {
  context.set_input_gradient(index,
                             context.builder().sum_to(gradient, context.input_type(index).shape));
}

void add_gradient(GradientContext& context) {
  for (const std::size_t i : {0, 1}) {
    if (context.wants(i)) set_broadcast_gradient(context, i, context.output_gradient());
  }
}
void sub_gradient(GradientContext& context) {
  if (context.wants(0)) set_broadcast_gradient(context, 0, context.output_gradient());
  if (!context.wants(1)) return;
  const ValueId sum =
      context.builder().sum_to(context.output_gradient(), context.input_type(1).shape);
  context.set_input_gradient(1, context.builder().add("Neg", {sum}));
}
void mul_gradient(GradientContext& context) {
  for (const std::size_t i : {0, 1}) {
    if (!context.wants(i)) continue;
    const ValueId product =
        context.builder().add("Mul", {context.output_gradient(), context.input(1 - i)});
    set_broadcast_gradient(context, i, product);
  }
}
// y = a / b: da = dy / b, db = -dy y / b
void div_gradient(GradientContext& context) {
  if (!context.wants(0) && !context.wants(1)) return;
  GraphBuilder& builder = context.builder();
  const ValueId quotient = builder.add("Div", {context.output_gradient(), context.input(1)});
  if (context.wants(0)) set_broadcast_gradient(context, 0, quotient);
  if (!context.wants(1)) return;
  const ValueId product = builder.add("Mul", {quotient, context.output(0)});
  const ValueId sum = builder.sum_to(product, context.input_type(1).shape);
  context.set_input_gradient(1, builder.add("Neg", {sum}));
}
// y = a - b q with the integer q = (a - y) / b: da = dy, db = -dy q
void mod_gradient(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId dy = context.output_gradient();
  if (context.wants(0)) set_broadcast_gradient(context, 0, dy);
  if (!context.wants(1)) return;
  const ValueId difference = builder.add("Sub", {context.output(0), context.input(0)});
  const ValueId quotient =
      builder.add("Round", {builder.add("Div", {difference, context.input(1)})});
  set_broadcast_gradient(context, 1, builder.add("Mul", {dy, quotient}));
}
// y = a^b: da = dy b a^(b-1), which is 0 where b is, also at a = 0; db = dy y ln a (0 where a <= 0,
// as elsewhere)
void pow_gradient(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId dy = context.output_gradient();
  const ValueId a = context.input(0);
  const ValueId b = context.input(1);
  const DType dtype = context.output_type(0).dtype;
  const ValueId zero = builder.scalar(0, dtype);
  if (context.wants(0)) {
    const ValueId power =
        builder.add("Pow", {a, builder.add("Sub", {b, builder.scalar(1, dtype)})});
    const ValueId slope = builder.add(
        "Where", {builder.add("Equal", {b, zero}), zero, builder.add("Mul", {b, power})});
    set_broadcast_gradient(context, 0, builder.add("Mul", {dy, slope}));
  }
  if (context.wants(1)) {
    const ValueId positive = builder.add("Greater", {a, zero});
    const ValueId safe = builder.add("Where", {positive, a, builder.scalar(1, dtype)});
    const ValueId product = builder.add("Mul", {context.output(0), builder.add("Log", {safe})});
    set_broadcast_gradient(context, 1, builder.add("Mul", {dy, product}));
  }
}
/// Max and Min: the gradient goes to the selected operand, half to each when they are equal.
void choice_gradient(GradientContext& context, std::string_view strict, std::string_view loose) {
  GraphBuilder& builder = context.builder();
  const ValueId dy = context.output_gradient();
  const DType dtype = context.output_type(0).dtype;
  for (const std::size_t i : {0, 1}) {
    if (!context.wants(i)) continue;
    const auto chosen = [&](std::string_view comparison) {
      const ValueId mask = builder.add(comparison, {context.input(i), context.input(1 - i)});
      return builder.add("Cast", {mask}, {{"to", static_cast<std::int64_t>(dtype)}});
    };
    const ValueId twice = builder.add("Add", {chosen(strict), chosen(loose)});
    const ValueId share = builder.add("Mul", {twice, builder.scalar(0.5, dtype)});
    set_broadcast_gradient(context, i, builder.add("Mul", {dy, share}));
  }
}
void max_gradient(GradientContext& context) {
  choice_gradient(context, "Greater", "GreaterOrEqual");
}
void min_gradient(GradientContext& context) { choice_gradient(context, "Less", "LessOrEqual"); }

void where_gradient(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId dy = context.output_gradient();
  const ValueId zero = builder.scalar(0, context.output_type(0).dtype);
  if (context.wants(1)) {
    set_broadcast_gradient(context, 1, builder.add("Where", {context.input(0), dy, zero}));
  }
  if (context.wants(2)) {
    set_broadcast_gradient(context, 2, builder.add("Where", {context.input(0), zero, dy}));
  }
}
void sum_gradient(GradientContext& context) {
  for (std::size_t i = 0; i < context.input_count(); ++i) {
    if (context.wants(i)) context.set_input_gradient(i, context.output_gradient());
  }
}

constexpr OpTraits element_traits(Fusion fusion) {
  return {KernelKind::kElementwise,
          {PrecisionRule::kAsLarge},
          LayoutRule::kFollows,
          {ChunkRule::kElements},
          fusion};
}

/// Definitions of the keywords of elementwise_list.h, besides the functions above.
namespace words {

constexpr auto floats = infer_float_unary;
constexpr auto numbers = infer_number_unary;
constexpr OpTraits narrow(Fusion fusion) { return element_traits(fusion); }
constexpr OpTraits wide(Fusion fusion) {
  OpTraits traits = element_traits(fusion);
  traits.precision = {PrecisionRule::kFloat};
  return traits;
}
// Cost of a gradient operator whose function costs `cost`: with the output at hand, the function is
// not evaluated again.
using CostOf = decltype(&cheap);
constexpr CostOf from_output(CostOf) { return cheap; }
constexpr CostOf from_input(CostOf cost) { return cost; }

}  // namespace words

constexpr OpDef kElementwiseOps[] = {
// clang-format off
#define PT_OPERATOR(Name, parameters, types, gradient, cost, stored) \
  {#Name, kElementwise, words::stored(Fusion::kFloats), words::types, gradient, cost}, \
  {#Name "Grad", kElementwise, words::stored(Fusion::kFloats), infer_elementwise_gradient, \
   nullptr, words::gradient(cost)},
    PT_UNARY_WITH_GRADIENT(PT_OPERATOR)
#undef PT_OPERATOR
#define PT_OPERATOR(Name, types, gradient, cost, stored) \
  {#Name, kElementwise, words::stored(Fusion::kFloats), words::types, gradient, cost},
    PT_UNARY(PT_OPERATOR)
#undef PT_OPERATOR
#define PT_OPERATOR(Name, function, gradient) \
  {#Name, kElementwise, element_traits(Fusion::kNever), infer_float_unary, gradient, costly},
    PT_UNARY_OF_LIBRARY(PT_OPERATOR)
#undef PT_OPERATOR
#define PT_OPERATOR(Name, parameters, gradient, cost, stored, fusion) \
  {#Name, kElementwise, words::stored(Fusion::fusion), infer_arithmetic, gradient, cost},
    PT_ARITHMETIC(PT_OPERATOR)
#undef PT_OPERATOR
#define PT_OPERATOR(Name) \
  {#Name, kElementwise, element_traits(Fusion::kComparison), infer_comparison, nullptr, cheap},
    PT_COMPARISONS(PT_OPERATOR)
#undef PT_OPERATOR
#define PT_OPERATOR(Name) \
  {#Name, kElementwise, element_traits(Fusion::kLogic), infer_logical, nullptr, cheap},
    PT_LOGIC(PT_OPERATOR)
#undef PT_OPERATOR
#define PT_OPERATOR(Name) \
  {#Name, kElementwise, element_traits(Fusion::kNever), infer_bits, nullptr, cheap},
    PT_BITWISE(PT_OPERATOR)
#undef PT_OPERATOR
    // clang-format on
    {"BitCast", kElementwise, element_traits(Fusion::kNever), infer_bit_cast, nullptr, cheap},
    {"Cast", kElementwise, element_traits(Fusion::kConversion), infer_cast, cast_gradient, cheap},
    {"IsNaN", kElementwise, element_traits(Fusion::kTest), infer_is_nan, nullptr, cheap},
    {"Not", kElementwise, element_traits(Fusion::kLogic), infer_not, nullptr, cheap},
    {"Sum", kElementwise, element_traits(Fusion::kFloats), infer_sum, sum_gradient, sum_cost},
    {"Where", kElementwise, element_traits(Fusion::kChoice), infer_where, where_gradient, cheap},
};

}  // namespace

const OpFamily& elementwise_family() {
  static const OpFamily family{"elementwise",
                               kElementwiseOps,
                               elementwise::imports(),
                               elementwise::reference_kernels(),
                               elementwise::cpu_kernels(),
                               [](Backend backend, const KernelRequest& request) {
                                 return backend == Backend::kCpu &&
                                        elementwise::takes_bfloat16(request);
                               }};
  return family;
}

}  // namespace pipetrain
