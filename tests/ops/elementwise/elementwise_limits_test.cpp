// Element-wise operators where formulas meet zeros, and integers meet the limits of their type.
#include <gtest/gtest.h>

#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

// b a^(b-1) would be 0 times infinity. Expected values from PyTorch.
TEST(ElementwiseLimits, PowersOfZeroHaveAGradient) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    Graph graph;
    GraphBuilder builder = make_builder(graph);
    const TensorType column{DType::kFloat32, {2, 1}}, table{DType::kFloat32, {2, 4}};
    const ValueId x = builder.add_value({"x", column, Role::kInput, {}, {}});
    const ValueId dy = builder.add_value({"dy", table, Role::kInput, {}, {}});
    const ValueId y = builder.add("Pow", {x, builder.constant(floats({4}, {0, 1, 2, 3}))});
    const bool wanted[] = {true, false};
    GradientContext context(builder, graph[y].producer, std::span<const ValueId>(&dy, 1), wanted);
    find_op("Pow")->differentiate(context);
    const auto values =
        run_graph(graph, backend,
                  {{x, floats({2, 1}, {0, 2})}, {dy, floats({2, 4}, {1, 1, 1, 1, 1, 1, 1, 1})}});
    expect_values(values[static_cast<std::size_t>(context.input_gradients()[0].index)], {2, 1},
                  {1, 17});
  }
}

TEST(ElementwiseLimits, TheZerothPowerOfZeroHasAGradient) {
  const Attributes zeroth = {{"exponent", 0.0}};
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const HostTensor dx = run_op("PowScalarGrad", zeroth,
                                 {floats({3}, {1, 2, 3}), floats({3}, {0, 2, -1})}, backend)[0];
    expect_values(dx, {3}, {0, 0, 0});
  }
  check_cpu("PowScalarGrad", zeroth, {{.shape = {3}}, {.shape = {3}, .values = {0, 2, -1}}});
}

// Only of signed types is the number whose bits are all set -1.
TEST(ElementwiseLimits, RemaindersByTheLargestUnsignedNumber) {
  const auto bytes = [](double value) {
    return random_tensor({DType::kUint8, {1}}, 1, value, value);
  };
  for (const std::int64_t fmod : {0, 1}) {
    const Attributes attributes = {{"fmod", fmod}};
    expect_values(run_op("Mod", attributes, {bytes(10), bytes(255)})[0], {1}, {10});
    expect_values(run_op("Mod", attributes, {bytes(255), bytes(255)})[0], {1}, {0});
    expect_values(run_op("Mod", attributes, {int64s({1}, {kLeast}), int64s({1}, {-1})})[0], {1},
                  {0});
  }
}

TEST(ElementwiseLimits, LimitsOfClipBeyondItsTypeLimitNothing) {
  const Attributes wide = {{"min", -1e30}, {"max", 1e30}};
  const auto same = run_op("Clip", wide, {int64s({3}, {kLeast, -5, kMost})})[0];
  EXPECT_EQ(same.span<std::int64_t>()[0], kLeast);
  EXPECT_EQ(same.span<std::int64_t>()[1], -5);
  EXPECT_EQ(same.span<std::int64_t>()[2], kMost);
  const auto none = run_op("Clip", {{"min", 1e30}}, {int64s({1}, {-5})})[0];
  EXPECT_EQ(none.span<std::int64_t>()[0], kMost);
}

// Doubles have 53 bits.
TEST(ElementwiseLimits, ClipKeepsEveryDigitOfIntegers) {
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  const ImportInput x = data(int64s({3}, {kLeast, -5, kMost}));
  const auto clipped = [&](std::int64_t least, std::int64_t most) {
    const HostTensor y =
        import_node("Clip", 13, {},
                    {x, constant(int64s({}, {least})), constant(int64s({}, {most}))})
            .run()[0];
    const auto values = y.span<std::int64_t>();
    return std::vector<std::int64_t>(values.begin(), values.end());
  };
  EXPECT_EQ(clipped(kLeast, kMost), (std::vector<std::int64_t>{kLeast, -5, kMost}));
  EXPECT_EQ(clipped(-large, large), (std::vector<std::int64_t>{-large, -5, large}));
}

// As PyTorch: what comes from below 0 includes 0.
TEST(ElementwiseLimits, GradientsAtZero) {
  const auto at_zero = [](const char* op, double alpha) {
    return run_op(op, {{"alpha", alpha}}, {floats({2}, {1, 1}), floats({2}, {0, -0.0F})})[0];
  };
  expect_values(at_zero("LeakyReluGrad", 0.25), {2}, {0.25, 0.25});
  expect_values(at_zero("EluGrad", 2), {2}, {2, 2});
  expect_values(run_op("ReluGrad", {}, {floats({2}, {1, 1}), floats({2}, {0, -0.0F})})[0], {2},
                {0, 0});
}

}  // namespace
}  // namespace pipetrain::test
