// Element-wise functions, their gradients and broadcasting, against the functions in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One unary operator: the function in double, and the range of test inputs.
struct UnaryCase {
  std::string op;
  Attributes attributes;
  double (*exact)(double);
  double low;
  double high;
  bool differentiable = true;
  double tolerance = 2e-6;
};

double normal_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

const std::vector<UnaryCase>& unary_cases() {
  static const std::vector<UnaryCase> cases = {
      {"Abs", {}, [](double x) { return std::fabs(x); }, -3, 3},
      {"Acos", {}, [](double x) { return std::acos(x); }, -0.95, 0.95},
      {"Acosh", {}, [](double x) { return std::acosh(x); }, 1.1, 9},
      {"Asin", {}, [](double x) { return std::asin(x); }, -0.95, 0.95},
      {"Asinh", {}, [](double x) { return std::asinh(x); }, -3, 3},
      {"Atan", {}, [](double x) { return std::atan(x); }, -3, 3},
      {"Atanh", {}, [](double x) { return std::atanh(x); }, -0.9, 0.9},
      {"Ceil", {}, [](double x) { return std::ceil(x); }, -3, 3, false},
      {"Clip",
       {{"min", -0.5}, {"max", 1.5}},
       [](double x) { return std::clamp(x, -0.5, 1.5); },
       -3,
       3},
      {"Clip", {{"max", 1.5}}, [](double x) { return std::min(x, 1.5); }, -3, 3},
      {"Cos", {}, [](double x) { return std::cos(x); }, -3, 3},
      {"Cosh", {}, [](double x) { return std::cosh(x); }, -3, 3},
      {"Elu", {{"alpha", 1.3}}, [](double x) { return x < 0 ? 1.3 * std::expm1(x) : x; }, -3, 3},
      {"Erf", {}, [](double x) { return std::erf(x); }, -3, 3},
      {"Exp", {}, [](double x) { return std::exp(x); }, -5, 5},
      {"Floor", {}, [](double x) { return std::floor(x); }, -3, 3, false},
      {"Gelu", {}, [](double x) { return x * normal_below(x); }, -4, 4},
      {"Gelu",
       {{"approximate", std::string("tanh")}},
       [](double x) {
         return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3))));
       },
       -4,
       4},
      {"HardSigmoid",
       {{"alpha", 0.3}, {"beta", 0.4}},
       [](double x) { return std::clamp(0.3 * x + 0.4, 0.0, 1.0); },
       -4,
       4},
      {"HardSwish", {}, [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }, -5, 5},
      {"LeakyRelu", {{"alpha", 0.2}}, [](double x) { return x < 0 ? 0.2 * x : x; }, -3, 3},
      {"Log", {}, [](double x) { return std::log(x); }, 0.1, 9},
      {"Neg", {}, [](double x) { return -x; }, -3, 3},
      {"PowScalar", {{"exponent", 2.0}}, [](double x) { return x * x; }, -3, 3},
      {"PowScalar", {{"exponent", 3.0}}, [](double x) { return x * x * x; }, -3, 3},
      {"PowScalar", {{"exponent", -0.7}}, [](double x) { return std::pow(x, -0.7); }, 0.3, 3},
      {"Reciprocal", {}, [](double x) { return 1 / x; }, 0.3, 3},
      {"Relu", {}, [](double x) { return std::max(x, 0.0); }, -3, 3},
      {"Round", {}, [](double x) { return std::nearbyint(x); }, -3, 3, false},
      {"Sigmoid", {}, [](double x) { return 1 / (1 + std::exp(-x)); }, -8, 8},
      {"Sign", {}, [](double x) { return x > 0 ? 1.0 : -1.0; }, -3, 3, false},
      {"Silu", {}, [](double x) { return x / (1 + std::exp(-x)); }, -8, 8},
      {"Sin", {}, [](double x) { return std::sin(x); }, -3, 3},
      {"Sinh", {}, [](double x) { return std::sinh(x); }, -3, 3},
      {"Softplus", {}, [](double x) { return std::log1p(std::exp(x)); }, -8, 8},
      {"Sqrt", {}, [](double x) { return std::sqrt(x); }, 0.1, 9},
      {"Tan", {}, [](double x) { return std::tan(x); }, -1.4, 1.4},
      {"Tanh", {}, [](double x) { return std::tanh(x); }, -3, 3},
  };
  return cases;
}

/// 1003 points: odd, so that vector loops have a tail. The grid avoids kinks.
std::vector<double> points(const UnaryCase& c, std::size_t count = 1003) {
  std::vector<double> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double at = (static_cast<double>(i) + 0.37) / static_cast<double>(count);
    out[i] = static_cast<float>(c.low + (c.high - c.low) * at);
  }
  return out;
}

TEST(Elementwise, UnaryMatchesTheFunctionInDouble) {
  for (const UnaryCase& c : unary_cases()) {
    SCOPED_TRACE(c.op + c.attributes.to_text());
    const std::vector<double> x = points(c);
    std::vector<double> y;
    for (const double value : x) y.push_back(c.exact(value));
    const auto count = static_cast<std::int64_t>(x.size());
    const HostTensor expected = doubles({count}, y);
    expect_close(run_op(c.op, c.attributes, {doubles({count}, x)})[0], expected, 1e-12);
    const HostTensor narrow = as_float(doubles({count}, x), DType::kFloat32);
    expect_close(run_op(c.op, c.attributes, {narrow})[0], as_float(expected, DType::kFloat32),
                 c.tolerance);
  }
}

TEST(Elementwise, UnaryGradients) {
  for (const UnaryCase& c : unary_cases()) {
    if (!c.differentiable) continue;
    check_gradients(c.op, c.attributes, {{.shape = {41}, .values = points(c, 41)}});
  }
}

TEST(Elementwise, UnaryOnTheCpu) {
  for (const UnaryCase& c : unary_cases()) {
    check_cpu(c.op, c.attributes, {{.shape = {1003}, .values = points(c)}}, c.tolerance);
  }
  for (const char* op : {"Cos", "Sin"})  // of large angles, as in positional encodings
    for (const double high : {10.0, 9000.0, 1e6})
      check_cpu(op, {}, {{.shape = {997}, .low = -high, .high = high}}, 1e-6);
  check_cpu("Tanh", {}, {{.shape = {3, 70001}, .low = -3, .high = 3}}, 2e-6);
}

// Near multiples of π/2, where most digits cancel, and with the sign of zero.
TEST(Elementwise, SinesNearTheirZerosOnTheCpu) {
  for (const char* op : {"Sin", "Cos"}) {
    std::vector<float> x = {0.0F, -0.0F};
    for (int n = -2600; n <= 2600; ++n)
      x.push_back(static_cast<float>((n + (op[0] == 'C' ? 0.5 : 0)) * 3.14159265358979323846));
    const auto count = static_cast<std::int64_t>(x.size());
    const HostTensor y = run_op(op, {}, {floats({count}, x)}, Backend::kCpu)[0];
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double wide = x[i], exact = op[0] == 'C' ? std::cos(wide) : std::sin(wide);
      EXPECT_NEAR(y.span<float>()[i], exact, 3e-7 * std::abs(exact)) << op << " " << x[i];
      EXPECT_EQ(std::signbit(y.span<float>()[i]), std::signbit(exact)) << op << " " << x[i];
    }
  }
}

TEST(Elementwise, SpecialValuesOnTheCpu) {
  const std::vector<double> x = {0.0, -0.0,  kInfinity, -kInfinity, kNaN, 90,
                                 -90, 1e-30, -1e-30,    20,         -20};
  for (const char* op : {"Relu", "Tanh", "Sigmoid", "Erf", "Exp", "Softplus", "Abs", "Sign",
                         "LeakyRelu", "Elu", "Sin", "Cos"}) {
    check_cpu(op, {}, {{.shape = {11}, .values = x}});
  }
  check_cpu("Log", {}, {{.shape = {7}, .values = {0, -1, 1, kInfinity, kNaN, 1e-40, 3e38}}});
  check_cpu("IsNaN", {}, {{.shape = {4}, .values = {1, kNaN, kInfinity, 0}}});
  for (const char* op :
       {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan"})
    check_cpu(op, {}, {{.shape = {7}, .values = {kInfinity, -kInfinity, kNaN, -0.0, 1, -1, 1.5}}},
              1e-6);
  expect_values(run_op("Relu", {}, {floats({2}, {-1, static_cast<float>(kNaN)})})[0], {2},
                {0, kNaN});
  expect_values(run_op("IsNaN", {}, {floats({3}, {1, static_cast<float>(kNaN), 0})})[0], {3},
                {0, 1, 0});
}

TEST(Elementwise, GradientKernelsOnTheCpu) {
  for (const char* op : {"ReluGrad", "TanhGrad", "SigmoidGrad", "SqrtGrad", "ReciprocalGrad",
                         "ErfGrad", "GeluGrad", "LeakyReluGrad", "EluGrad", "SoftplusGrad",
                         "HardSigmoidGrad", "HardSwishGrad", "SiluGrad"}) {
    check_cpu(op, {}, {{.shape = {17, 61}}, {.shape = {17, 61}, .low = -4, .high = 4}}, 3e-6);
  }
  check_cpu("GeluGrad", {{"approximate", std::string("tanh")}},
            {{.shape = {17, 61}}, {.shape = {17, 61}, .low = -4, .high = 4}}, 3e-6);
  check_cpu("ClipGrad", {{"min", -1.0}, {"max", 1.0}},
            {{.shape = {999}}, {.shape = {999}, .low = -2, .high = 2}});
  for (const double exponent : {2.0, 3.0, 1.5}) {
    check_cpu("PowScalarGrad", {{"exponent", exponent}},
              {{.shape = {999}}, {.shape = {999}, .low = 0.5, .high = 2}});
  }
}

// --- binary ---

struct Shapes {
  Shape a, b;
};
const std::vector<Shapes>& broadcast_shapes() {
  static const std::vector<Shapes> shapes = {
      {{5, 7}, {5, 7}},
      {{5, 7}, {}},
      {{}, {5, 7}},
      {{4, 5, 7}, {7}},
      {{3, 4, 5, 7}, {4, 1, 1}},
      {{4, 5, 7}, {4, 5, 1}},
      {{4, 1, 7}, {5, 1}},
      {{1, 7}, {5, 1}},
      {{2, 3, 5}, {2, 1, 5}},
      {{1}, {1, 1, 1}},
      {{2, 1, 3, 1}, {4, 1, 5}},
      {{3, 5}, {1, 1, 3, 5}},
      {{0, 3}, {3}},
      {{2, 6, 1, 8}, {1, 1, 9, 8}},
  };
  return shapes;
}

TEST(Elementwise, BroadcastingMatchesItsDefinition) {
  for (const auto& [a, b] : broadcast_shapes()) {
    const Shape out = broadcast(a, b);
    const HostTensor x = random_tensor({DType::kFloat64, a}, 1);
    const HostTensor y = random_tensor({DType::kFloat64, b}, 2);
    std::vector<double> expected;
    for (std::int64_t i = 0; i < out.count(); ++i) {
      // The coordinates of element i, and the offset of each operand.
      std::int64_t rest = i, at_a = 0, at_b = 0, step_a = 1, step_b = 1;
      for (std::size_t k = 0; k < out.rank(); ++k) {
        const std::int64_t index = rest % out[out.rank() - 1 - k];
        rest /= out[out.rank() - 1 - k];
        if (k < a.rank()) {
          const std::int64_t dim = a[a.rank() - 1 - k];
          at_a += (dim == 1 ? 0 : index) * step_a;
          step_a *= dim;
        }
        if (k < b.rank()) {
          const std::int64_t dim = b[b.rank() - 1 - k];
          at_b += (dim == 1 ? 0 : index) * step_b;
          step_b *= dim;
        }
      }
      expected.push_back(x.span<double>()[static_cast<std::size_t>(at_a)] -
                         y.span<double>()[static_cast<std::size_t>(at_b)]);
    }
    expect_values(run_op("Sub", {}, {x, y})[0], out, expected, 0);
  }
}

TEST(Elementwise, BinaryForward) {
  const HostTensor a = floats({4}, {7, -7, 2.5F, 0});
  const HostTensor b = floats({4}, {2, 2, -1, 3});
  expect_values(run_op("Add", {}, {a, b})[0], {4}, {9, -5, 1.5, 3});
  expect_values(run_op("Mul", {}, {a, b})[0], {4}, {14, -14, -2.5, 0});
  expect_values(run_op("Div", {}, {a, b})[0], {4}, {3.5, -3.5, -2.5, 0});
  expect_values(run_op("Pow", {}, {a, b})[0], {4}, {49, 49, 0.4, 0});
  expect_values(run_op("Max", {}, {a, b})[0], {4}, {7, 2, 2.5, 3});
  expect_values(run_op("Min", {}, {a, b})[0], {4}, {2, -7, -1, 0});
  expect_values(run_op("Mod", {{"fmod", std::int64_t{1}}}, {a, b})[0], {4}, {1, -1, 0.5, 0});
  expect_values(run_op("Less", {}, {a, b})[0], {4}, {0, 1, 0, 1});
  expect_values(run_op("GreaterOrEqual", {}, {a, a})[0], {4}, {1, 1, 1, 1});
}

TEST(Elementwise, IntegersAndBools) {
  const HostTensor a = int64s({4}, {7, -7, 7, -7});
  const HostTensor b = int64s({4}, {2, 2, -2, 0});
  expect_values(run_op("Div", {}, {a, b})[0], {4}, {3, -3, -3, 0});
  expect_values(run_op("Mod", {}, {a, b})[0], {4}, {1, 1, -1, 0});
  expect_values(run_op("Mod", {{"fmod", std::int64_t{1}}}, {a, b})[0], {4}, {1, -1, 1, 0});
  expect_values(run_op("Pow", {}, {b, int64s({}, {3})})[0], {4}, {8, 8, -8, 0});
  const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(
      run_op("Div", {}, {int64s({1}, {lowest}), int64s({1}, {-1})})[0].span<std::int64_t>()[0],
      lowest);
  expect_values(run_op("Equal", {}, {a, int64s({}, {7})})[0], {4}, {1, 0, 1, 0});
  const HostTensor p = bools({4}, {0, 0, 1, 1});
  const HostTensor q = bools({4}, {0, 1, 0, 1});
  expect_values(run_op("And", {}, {p, q})[0], {4}, {0, 0, 0, 1});
  expect_values(run_op("Or", {}, {p, q})[0], {4}, {0, 1, 1, 1});
  expect_values(run_op("Xor", {}, {p, q})[0], {4}, {0, 1, 1, 0});
  expect_values(run_op("Equal", {}, {p, q})[0], {4}, {1, 0, 0, 1});
  expect_values(run_op("Not", {}, {p})[0], {4}, {1, 1, 0, 0});
  expect_values(run_op("Neg", {}, {a})[0], {4}, {-7, 7, -7, 7});
  expect_values(run_op("Sign", {}, {b})[0], {4}, {1, 1, -1, 0});
  expect_values(run_op("Clip", {{"min", 0.0}}, {a})[0], {4}, {7, 0, 7, 0});
}

TEST(Elementwise, Bits) {
  const HostTensor a = int32s({4}, {12, -1, 5, 1 << 30});
  const HostTensor b = int32s({}, {10});
  expect_values(run_op("BitwiseAnd", {}, {a, b})[0], {4}, {8, 10, 0, 0});
  expect_values(run_op("BitwiseOr", {}, {a, b})[0], {4}, {14, -1, 15, (1 << 30) + 10});
  expect_values(run_op("BitwiseXor", {}, {a, b})[0], {4}, {6, -11, 15, (1 << 30) + 10});
  const HostTensor bytes = random_tensor({DType::kUint8, {3}}, 1, 129, 130);
  const auto shifted = [&](const char* op, double by) {
    return run_op(op, {}, {bytes, random_tensor({DType::kUint8, {}}, 1, by, by)})[0];
  };
  expect_values(shifted("ShiftLeft", 1), {3}, {2, 2, 2});
  expect_values(shifted("ShiftRight", 7), {3}, {1, 1, 1});
  expect_values(shifted("ShiftRight", 8), {3}, {0, 0, 0});
  // Right shifts of negative integers keep the sign, also where nothing else is left (ONNX's
  // cases).
  expect_values(run_op("ShiftRight", {}, {int32s({3}, {-8, -1, -2147483647}), int32s({}, {1})})[0],
                {3}, {-4, -1, -1073741824});
  const HostTensor signs = int32s({3}, {-8, 4, -1});
  for (const HostTensor& by : {int32s({3}, {32, 33, 100}), int32s({3}, {-1, -32, -64})}) {
    expect_values(run_op("ShiftRight", {}, {signs, by})[0], {3}, {-1, 0, -1});
    expect_values(run_op("ShiftLeft", {}, {signs, by})[0], {3}, {0, 0, 0});
  }
  const HostTensor one = floats({1}, {1});
  const Attributes to = {{"to", static_cast<std::int64_t>(DType::kInt32)}};
  expect_values(run_op("BitCast", to, {one})[0], {1}, {0x3f800000});
  expect_error(ErrorKind::kModel, "do not fit", [] {
    infer_op("BitCast", {{"to", static_cast<std::int64_t>(DType::kInt64)}},
             {{DType::kFloat32, Shape{1}}});
  });
  expect_error(ErrorKind::kModel, "expected integers", [] {
    infer_op("BitwiseAnd", {}, {{DType::kFloat32, Shape{1}}, {DType::kFloat32, Shape{1}}});
  });
}

// The gradient is zero wherever it exists.
TEST(Elementwise, PiecewiseConstantFunctionsStopTheGradient) {
  for (const char* op : {"Ceil", "Floor", "Round", "Sign"}) {
    Graph graph;
    GraphBuilder builder = make_builder(graph);
    const ValueId x = builder.add_value({"x", {DType::kFloat32, {2}}, Role::kInput, {}, {}});
    const ValueId y = builder.add(op, {x});
    const bool wanted[] = {true};
    GradientContext context(builder, graph[y].producer, std::span<const ValueId>(&y, 1), wanted);
    ASSERT_NE(find_op(op)->differentiate, nullptr) << op;
    find_op(op)->differentiate(context);
    EXPECT_FALSE(context.input_gradients()[0]) << op;
  }
}

TEST(Elementwise, IntegersAndMasksOnTheCpu) {
  const InputSpec p{.shape = {7, 300}, .low = 0, .high = 2, .dtype = DType::kBool};
  const InputSpec q{.shape = {300}, .low = 0, .high = 2, .dtype = DType::kBool};
  for (const char* op : {"And", "Or", "Xor", "Equal"}) check_cpu(op, {}, {p, q});
  check_cpu("Not", {}, {p});
  const InputSpec i{.shape = {7, 300}, .low = -3, .high = 3, .dtype = DType::kInt64};
  const InputSpec j{.shape = {7, 1}, .low = -3, .high = 3, .dtype = DType::kInt64};
  for (const char* op : {"Add", "Mul", "Equal", "Less", "Greater"}) check_cpu(op, {}, {i, j});
  const auto to = [](DType dtype) { return Attributes{{"to", static_cast<std::int64_t>(dtype)}}; };
  check_cpu("Cast", to(DType::kFloat32), {p});
  check_cpu("Cast", to(DType::kFloat32), {i});
  check_cpu("Cast", to(DType::kBool), {{.shape = {5}, .values = {0, -0.0, 0.5, kNaN, -2}}});
  check_cpu("Cast", to(DType::kInt64), {{.shape = {4}, .values = {-1.5, 2.5, 1e6, 0}}});
}

TEST(Elementwise, BinaryGradients) {
  for (const auto& [a, b] : broadcast_shapes()) {
    if (broadcast(a, b).count() == 0) continue;
    check_gradients("Add", {}, {{.shape = a}, {.shape = b}});
    check_gradients("Sub", {}, {{.shape = a}, {.shape = b}});
    check_gradients("Mul", {}, {{.shape = a}, {.shape = b}});
    check_gradients("Div", {}, {{.shape = a}, {.shape = b, .low = 0.5, .high = 2}});
  }
  check_gradients("Pow", {},
                  {{.shape = {4, 5}, .low = 0.5, .high = 2}, {.shape = {5}, .low = -2, .high = 2}});
  for (const std::int64_t fmod : {0, 1}) {
    check_gradients("Mod", {{"fmod", fmod}},
                    {{.shape = {3, 2}, .values = {5.3, -5.3, 1.2, 7.7, -0.4, 9.1}},
                     {.shape = {2}, .values = {2.1, -1.7}}});
  }
  check_gradients("Max", {}, {{.shape = {4, 5}}, {.shape = {4, 5}}});
  check_gradients("Min", {}, {{.shape = {4, 5}}, {.shape = {5}}});
}

TEST(Elementwise, EqualOperandsOfMaxShareTheGradient) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  // Constants are folded, so the rule can be checked by its results.
  const ValueId x = builder.add_value({"x", {DType::kFloat32, {2}}, Role::kInput, {}, {}});
  const ValueId y = builder.add_value({"y", {DType::kFloat32, {2}}, Role::kInput, {}, {}});
  const ValueId z = builder.add("Max", {x, y});
  const ValueId dz = builder.add_value({"dz", {DType::kFloat32, {2}}, Role::kInput, {}, {}});
  const bool wanted[] = {true, true};
  GradientContext context(builder, graph[z].producer, std::span<const ValueId>(&dz, 1), wanted);
  find_op("Max")->differentiate(context);
  const auto values =
      run_graph(graph, Backend::kReference,
                {{x, floats({2}, {1, 3})}, {y, floats({2}, {1, 2})}, {dz, floats({2}, {4, 6})}});
  const auto at = [&](std::size_t i) {
    return values[static_cast<std::size_t>(context.input_gradients()[i].index)];
  };
  expect_values(at(0), {2}, {2, 6});
  expect_values(at(1), {2}, {2, 0});
}

TEST(Elementwise, BinaryOnTheCpu) {
  for (const auto& [a, b] : broadcast_shapes()) {
    for (const char* op : {"Add", "Sub", "Mul", "Max", "Min", "Less", "GreaterOrEqual"}) {
      check_cpu(op, {}, {{.shape = a}, {.shape = b}});
    }
    check_cpu("Div", {}, {{.shape = a}, {.shape = b, .low = 0.5, .high = 2}});
  }
  check_cpu("Pow", {}, {{.shape = {4, 5}, .low = 0.5, .high = 2}, {.shape = {5}}});
  // Larger than one tile, in both directions.
  check_cpu("Add", {}, {{.shape = {300, 301}}, {.shape = {301}}});
  check_cpu("Mul", {}, {{.shape = {2, 70001}}, {.shape = {2, 1}}});
  check_cpu("Sub", {}, {{.shape = {4, 6, 64, 64}}, {.shape = {6, 1, 1}}});
  check_cpu("Sub", {}, {{.shape = {70001, 2}}, {.shape = {70001, 1}}});
}

TEST(Elementwise, BlockedLayouts) {
  // x: (2, 16, 3, 5) stored as (2, 2, 3, 5, 8)
  const TensorType type{DType::kFloat32, {2, 16, 3, 5}};
  const HostTensor x = random_tensor(type, 3);
  const HostTensor per_channel = random_tensor({DType::kFloat32, {16, 1, 1}}, 4);
  const HostTensor map = random_tensor({DType::kFloat32, {1, 16, 3, 5}}, 5);
  TensorType blocked_type = type;
  blocked_type.layout = Layout::kBlocked8;
  const auto block = [&](const HostTensor& from) {
    HostTensor out(blocked_type);
    for (std::int64_t n = 0; n < 2; ++n) {
      for (std::int64_t c = 0; c < 16; ++c) {
        for (std::int64_t at = 0; at < 15; ++at) {
          out.view().as<float>()[((n * 2 + c / 8) * 15 + at) * 8 + c % 8] =
              from.view().as<float>()[(n * 16 + c) * 15 + at];
        }
      }
    }
    return out;
  };
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (const HostTensor& b : {per_channel, map, floats({}, {0.5F})}) {
      const HostTensor expected = run_op("Mul", {}, {x, b})[0];
      expect_same_bits(run_op("Mul", {}, {block(x), b}, backend)[0], block(expected),
                       b.type().text());
    }
    expect_same_bits(run_op("Relu", {}, {block(x)}, backend)[0], block(run_op("Relu", {}, {x})[0]));
  }
}

// --- Where, Sum, Cast ---

TEST(Elementwise, Where) {
  const HostTensor c = bools({2, 2}, {1, 0, 0, 1});
  expect_values(run_op("Where", {}, {c, floats({2}, {1, 2}), floats({}, {9})})[0], {2, 2},
                {1, 9, 9, 2});
  expect_values(run_op("Where", {}, {c, int64s({2, 1}, {1, 2}), int64s({}, {9})})[0], {2, 2},
                {1, 9, 9, 2});
  const std::vector<double> mask = {1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1};
  const InputSpec condition{.shape = {3, 4}, .dtype = DType::kBool, .values = mask};
  check_gradients("Where", {}, {condition, {.shape = {3, 4}}, {.shape = {4}}});
  check_gradients("Where", {}, {condition, {.shape = {2, 3, 4}}, {.shape = {}}});
  const InputSpec row{.shape = {4}, .dtype = DType::kBool, .values = {1, 0, 0, 1}};
  const InputSpec column{.shape = {3, 1}, .dtype = DType::kBool, .values = {1, 0, 1}};
  for (const InputSpec& c2 : {condition, row, column}) {
    check_cpu("Where", {}, {c2, {.shape = {3, 4}}, {.shape = {3, 4}}});
    check_cpu("Where", {}, {c2, {.shape = {}}, {.shape = {5, 3, 4}}});
    check_cpu("Where", {}, {c2, {.shape = {5, 3, 4}}, {.shape = {1}}});
    check_cpu("Where", {}, {c2, {.shape = {5, 3, 1}}, {.shape = {4}}});
  }
}

TEST(Elementwise, Sum) {
  expect_values(
      run_op("Sum", {}, {floats({2}, {1, 2}), floats({2}, {10, 20}), floats({2}, {100, 200})})[0],
      {2}, {111, 222});
  // From left to right: 1e8 absorbs the 1, then cancels.
  expect_values(run_op("Sum", {}, {floats({1}, {1}), floats({1}, {1e8F}), floats({1}, {-1e8F})})[0],
                {1}, {0}, 0);
  expect_values(run_op("Sum", {}, {floats({1}, {1}), floats({1}, {1e8F}), floats({1}, {-1e8F})},
                       Backend::kCpu)[0],
                {1}, {0}, 0);
  check_gradients("Sum", {}, {{.shape = {3, 4}}, {.shape = {3, 4}}, {.shape = {3, 4}}});
  for (const std::size_t count : {1, 2, 3, 5}) {
    check_cpu("Sum", {}, std::vector<InputSpec>(count, InputSpec{.shape = {37, 201}}), 1e-6);
  }
}

TEST(Elementwise, Cast) {
  const auto to = [](DType dtype) { return Attributes{{"to", static_cast<std::int64_t>(dtype)}}; };
  const HostTensor x = floats({4}, {-1.75F, 0, 2.5F, 300});
  expect_values(run_op("Cast", to(DType::kInt64), {x})[0], {4}, {-1, 0, 2, 300});
  expect_values(run_op("Cast", to(DType::kBool), {x})[0], {4}, {1, 0, 1, 1});
  expect_values(run_op("Cast", to(DType::kFloat16), {x})[0], {4}, {-1.75, 0, 2.5, 300});
  expect_values(run_op("Cast", to(DType::kBFloat16), {floats({1}, {1.00390625F})})[0], {1}, {1});
  expect_values(run_op("Cast", to(DType::kFloat32), {bools({2}, {1, 0})})[0], {2}, {1, 0});
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(run_op("Cast", to(DType::kUint64), {int64s({1}, {large})})[0].span<std::uint64_t>()[0],
            static_cast<std::uint64_t>(large));
  check_gradients("Cast", to(DType::kFloat64), {{.shape = {3}}});
}

TEST(Elementwise, WrongInputsAreRefused) {
  expect_error(ErrorKind::kModel, "do not broadcast", [] {
    infer_op("Add", {}, {{DType::kFloat32, {2, 3}}, {DType::kFloat32, {4}}});
  });
  expect_error(ErrorKind::kModel, "equal element types", [] {
    infer_op("Mul", {}, {{DType::kFloat32, {2}}, {DType::kInt64, {2}}});
  });
  expect_error(ErrorKind::kModel, "float", [] { infer_op("Tanh", {}, {{DType::kInt64, {2}}}); });
  expect_error(ErrorKind::kModel, "bool", [] {
    infer_op("And", {}, {{DType::kInt64, {2}}, {DType::kInt64, {2}}});
  });
  expect_error(ErrorKind::kModel, "expected 2 inputs", [] {
    infer_op("Add", {}, {{DType::kFloat32, {2}}});
  });
  expect_error(ErrorKind::kModel, "convert", [] {
    infer_op("Cast", {{"to", std::int64_t{8}}}, {{DType::kFloat32, {2}}});
  });
}

// --- import ---

}  // namespace
}  // namespace pipetrain::test
