// What ONNX's element-wise operators become when they are imported.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

TEST(ElementwiseImport, PowWithAKnownExponent) {
  const ImportInput x = data(floats({2}, {4, 9}));
  const auto with = [&](float exponent) {
    return import_node("Pow", 13, {}, {x, constant(floats({}, {exponent}))});
  };
  EXPECT_EQ(with(2).ops(), "PowScalar");
  expect_values(with(2).run()[0], {2}, {16, 81});
  EXPECT_EQ(with(0.5F).ops(), "Sqrt");
  expect_values(with(-1).run()[0], {2}, {0.25, 1.0 / 9});
  EXPECT_EQ(with(1).ops(), "");
  const Imported by_integer = import_node("Pow", 15, {}, {x, constant(int64s({}, {3}))});
  expect_values(by_integer.run()[0], {2}, {64, 729});
  const Imported general = import_node("Pow", 13, {}, {x, data(floats({2, 1}, {1, 2}))});
  expect_values(general.run()[0], {2, 2}, {4, 9, 16, 81});
}

// Expected values from ONNX Runtime.
TEST(ElementwiseImport, PowOfIntegersWithAFractionAsExponent) {
  const ImportInput x = data(int64s({2}, {4, 9}));
  const auto with = [&](const ImportInput& exponent) {
    const HostTensor y = import_node("Pow", 15, {}, {x, exponent}).run()[0];
    EXPECT_EQ(y.dtype(), DType::kInt64);
    return y;
  };
  expect_values(with(constant(floats({}, {0.5F}))), {2}, {2, 3});
  expect_values(with(data(floats({3, 1}, {0.5F, 2.5F, -1}))), {3, 2}, {2, 3, 32, 243, 0, 0});
  expect_values(with(constant(floats({}, {2}))), {2}, {16, 81});
  EXPECT_EQ(import_node("Pow", 15, {}, {x, constant(floats({}, {2}))}).ops(), "Pow");
}

TEST(ElementwiseImport, IntegersKeepTheirType) {
  const ImportInput x = data(int64s({2}, {-2, 3}));
  expect_values(import_node("PRelu", 16, {}, {x, data(int64s({}, {4}))}).run()[0], {2}, {-8, 3});
  const ImportInput a = data(int64s({1, 2}, {1, 2})), b = data(int64s({2, 1}, {3, 4}));
  const HostTensor c = import_node("Gemm", 13, {{"alpha", 2.0}}, {a, b}).run()[0];
  EXPECT_EQ(c.dtype(), DType::kInt64);
  expect_values(c, {1, 1}, {22});
}

TEST(ElementwiseImport, IntegersTakeNoOtherConstants) {
  const ImportInput a = data(int64s({1, 2}, {1, 2})), b = data(int64s({2, 1}, {3, 4}));
  for (const char* factor : {"alpha", "beta"}) {
    const auto gemm = [&] {
      import_node("Gemm", 13, {{factor, 0.5}}, {a, b, data(int64s({1}, {5}))});
    };
    expect_error(ErrorKind::kModel, "values of int64 cannot be combined with the constant 0.5",
                 gemm);
  }
  const ImportInput x = data(int64s({5}, {-3, -1, 0, 1, 3}));
  expect_error(ErrorKind::kModel, "IsInf takes floats", [&] { import_node("IsInf", 20, {}, {x}); });
  // Limits between two integers tell them apart.
  expect_values(import_node("Shrink", 9, {}, {x}).run()[0], {5}, {-3, -1, 0, 1, 3});
  expect_values(import_node("Shrink", 9, {{"lambd", 1.5}, {"bias", 2.0}}, {x}).run()[0], {5},
                {-1, 0, 0, 0, 1});
  expect_values(import_node("Shrink", 9, {{"lambd", -0.5}, {"bias", 2.0}}, {x}).run()[0], {5},
                {-1, 1, 2, -1, 1});
}

TEST(ElementwiseImport, Clip) {
  const ImportInput x = data(floats({3}, {-2, 0.5F, 9}));
  expect_values(import_node("Clip", 6, {{"min", 0.0}, {"max", 6.0}}, {x}).run()[0], {3},
                {0, 0.5, 6});
  expect_values(import_node("Clip", 13, {}, {x, absent(), constant(floats({}, {6}))}).run()[0], {3},
                {-2, 0.5, 6});
  const Imported unknown = import_node("Clip", 13, {}, {x, data(floats({}, {0}))});
  EXPECT_EQ(unknown.ops(), "Max");
  expect_values(unknown.run()[0], {3}, {0, 0.5, 9});
  EXPECT_EQ(import_node("Clip", 13, {}, {x}).ops(), "");
  // A maximum below the minimum wins, known or not.
  const HostTensor low = floats({}, {-1});
  for (const ImportInput& maximum : {data(low), constant(low)})
    expect_values(import_node("Clip", 13, {}, {x, constant(floats({}, {0})), maximum}).run()[0],
                  {3}, {-1, -1, -1});
}

TEST(ElementwiseImport, Compositions) {
  const ImportInput x = data(floats({3}, {-1, 0.5F, 2}));
  const auto result = [&](std::string_view op, const Attributes& attributes = {}) {
    return import_node(op, 22, attributes, {x}).run()[0];
  };
  expect_values(result("Selu"), {3}, {-1.11133072, 0.52535051, 2.10140204});
  expect_values(result("Celu", {{"alpha", 2.0}}), {3}, {2 * std::expm1(-0.5), 0.5, 2});
  expect_values(result("ThresholdedRelu", {{"alpha", 0.6}}), {3}, {0, 0, 2});
  expect_values(result("Softsign"), {3}, {-0.5, 1.0 / 3, 2.0 / 3});
  expect_values(result("Mish"), {3}, {-0.30340147, 0.37524524, 1.94395900});
  expect_values(result("Swish"), {3}, {-0.26894142, 0.31122967, 1.76159416});
  expect_values(result("Swish", {{"alpha", 2.0}}), {3}, {-0.11920292, 0.36552929, 1.96402758});
  expect_values(import_node("PRelu", 16, {}, {x, data(floats({3}, {0.1F, 0.2F, 0.3F}))}).run()[0],
                {3}, {-0.1, 0.5, 2});
  expect_values(
      import_node("IsInf", 20,
                  {{"detect_positive", std::int64_t{0}}, {"detect_negative", std::int64_t{0}}},
                  {data(floats({3}, {-INFINITY, INFINITY, NAN}))})
          .run()[0],
      {3}, {0, 0, 0});
  expect_values(import_node("IsInf", 20, {{"detect_positive", std::int64_t{0}}},
                            {data(floats({2}, {INFINITY, -INFINITY}))})
                    .run()[0],
                {2}, {0, 1});
}

// Default values of attributes in the specification.
TEST(ElementwiseImport, DefaultsOfActivations) {
  const ImportInput x = data(floats({3}, {-1, 0.5F, 2}));
  const auto result = [&](std::string_view op) { return import_node(op, 16, {}, {x}).run()[0]; };
  expect_values(result("LeakyRelu"), {3}, {-0.01, 0.5, 2});
  expect_values(result("Elu"), {3}, {std::expm1(-1.0), 0.5, 2});
  expect_values(result("Celu"), {3}, {std::expm1(-1.0), 0.5, 2});
  expect_values(result("HardSigmoid"), {3}, {0.3, 0.6, 0.9});
  expect_values(result("ThresholdedRelu"), {3}, {0, 0, 2});
  expect_values(result("Shrink"), {3}, {-1, 0, 2});
}

TEST(ElementwiseImport, AnyNumberOfInputs) {
  const ImportInput a = data(floats({2}, {1, 5}));
  const ImportInput b = data(floats({2}, {3, 2}));
  const ImportInput c = data(floats({2}, {2, 2}));
  EXPECT_EQ(import_node("Sum", 13, {}, {a, b, c}).ops(), "Sum");
  expect_values(import_node("Sum", 13, {}, {a, b, c}).run()[0], {2}, {6, 9});
  expect_values(import_node("Sum", 13, {}, {a, b, data(floats({}, {1}))}).run()[0], {2}, {5, 8});
  expect_values(import_node("Mean", 13, {}, {a, b, c}).run()[0], {2}, {2, 3});
  expect_values(import_node("Max", 13, {}, {a, b, c}).run()[0], {2}, {3, 5});
  expect_values(import_node("Min", 13, {}, {a}).run()[0], {2}, {1, 5});
}

TEST(ElementwiseImport, FoldsConstants) {
  const Imported sum =
      import_node("Add", 13, {}, {constant(int64s({2}, {1, 2})), constant(int64s({}, {5}))});
  EXPECT_TRUE(sum.is_constant());
  expect_values(sum.run()[0], {2}, {6, 7});
  const Imported same =
      import_node("Cast", 13, {{"to", std::int64_t{1}}}, {data(floats({1}, {1}))});
  EXPECT_EQ(same.ops(), "");
}

// test_attention_4d_fp16_expanded casts its scale: what it is combined with is float32 by then.
TEST(ElementwiseImport, CastsToFloat32WhateverFloatingPointTypeTheFileHas) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    const Attributes to{{"to", static_cast<std::int64_t>(dtype)}};
    EXPECT_EQ(import_node("Cast", 13, to, {data(floats({1}, {1}))}).ops(), "");
    const Imported counted = import_node("Cast", 13, to, {data(int64s({1}, {3}))});
    EXPECT_EQ(counted.graph[counted.outputs[0]].type.dtype, DType::kFloat32);
  }
}

}  // namespace
}  // namespace pipetrain::test
