#include <gtest/gtest.h>

#include <cmath>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes over(std::int64_t axis, double epsilon = 1e-5) {
  return {{"axis", axis}, {"epsilon", epsilon}};
}

TEST(LayerNorm, GoldenNumbers) {
  const HostTensor x = floats({2, 4}, {1, 2, 4, 8, 0.5, -0.5, 0.25, -0.25});
  const HostTensor scale = floats({4}, {1, 2, -1, 0.5});
  const HostTensor bias = floats({4}, {0.1f, 0.2f, 0.3f, 0.4f});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("LayerNorm", over(-1), {x, scale, bias}, backend);
    expect_values(out[0], {2, 4},
                  {-0.9257545755, -1.1055058234, 0.206749584, 1.1926285356, 1.3648705889,
                   -2.3297411777, -0.3324352944, 0.0837823528});
    expect_values(out[1], {2}, {3.75, 0});
    expect_values(out[2], {2}, {0.3730016638, 2.5297411777});
  }
}

TEST(LayerNorm, GradientsOfEveryInput) {
  check_gradients("LayerNorm", over(-1), {{{3, 5}}, {{5}, 0.5, 2}, {{5}}});
  check_gradients("LayerNorm", over(1), {{{2, 3, 4}}, {{3, 4}, 0.5, 2}, {{3, 4}}});
  check_gradients("LayerNorm", over(-1), {{{3, 5}}, {{5}, 0.5, 2}});
  check_gradients("LayerNorm", over(-1), {{{3, 5}}});
  check_gradients("LayerNorm", over(0, 1e-2), {{{6}}, {{6}, 0.5, 2}, {{6}}});
}

TEST(LayerNorm, CpuAgreesWithReference) {
  for (const Shape& shape : {Shape{3, 5}, Shape{70, 384}, Shape{2, 3, 1000}, Shape{400, 48}}) {
    const Shape scale{shape[shape.rank() - 1]};
    check_cpu("LayerNorm", over(-1), {{shape, -3, 5}, {scale}, {scale}}, 1e-5);
    check_cpu("LayerNorm", over(-1), {{shape, -3, 5}, {scale}}, 1e-5);
    check_cpu("LayerNorm", over(-1), {{shape, -3, 5}}, 1e-5);
    const Shape rows(std::vector<std::int64_t>(shape.begin(), shape.end() - 1));
    const InputSpec mean{rows};
    const InputSpec inverse{rows, 0.5, 2};
    check_cpu("LayerNormInputGrad", over(-1), {{shape}, {shape}, {scale}, mean, inverse}, 1e-5);
    InputSpec no_scale{scale};
    no_scale.absent = true;
    check_cpu("LayerNormInputGrad", over(-1), {{shape}, {shape}, no_scale, mean, inverse}, 1e-5);
    check_cpu("LayerNormWeightGrad", over(-1), {{shape}, {shape}, mean, inverse}, 1e-5);
  }
}

// A schedule may compute the gradients of x and of the weights at different times.
TEST(LayerNorm, GradientIsTwoNodes) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  const auto input = [&](Shape shape) {
    Value value;
    value.name = "input";
    value.type = {DType::kFloat32, std::move(shape)};
    return builder.add_value(std::move(value));
  };
  const std::vector<ValueId> y =
      builder.add_all("LayerNorm", {input({4, 8}), input({8}), input({8})}, over(-1));
  const std::vector<ValueId> dy = {input({4, 8}), {}, {}};
  const bool wanted[] = {true, true, true};
  GradientContext context(builder, graph[y[0]].producer, dy, wanted);
  find_op("LayerNorm")->differentiate(context);
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[1].op->name, "LayerNormInputGrad");
  EXPECT_EQ(graph.nodes[2].op->name, "LayerNormWeightGrad");
}

TEST(LayerNorm, RefusesWhatDoesNotFit) {
  const TensorType x{DType::kFloat32, Shape{2, 3, 4}};
  expect_error(ErrorKind::kModel, "axis 3", [&] { infer_op("LayerNorm", over(3), {x}); });
  expect_error(ErrorKind::kModel, "scale must be float32 (4)", [&] {
    infer_op("LayerNorm", over(-1), {x, {DType::kFloat32, Shape{3}}});
  });
  expect_error(ErrorKind::kModel, "no elements to normalize", [] {
    infer_op("LayerNorm", over(-1), {{DType::kFloat32, Shape{2, 0}}});
  });
}

// A large epsilon shows where it is added.
TEST(LayerNorm, EpsilonIsAddedToTheVariance) {
  const InputSpec x{{3, 5}}, five{{5}};
  const Attributes attributes = {{"axis", std::int64_t{-1}}, {"epsilon", 0.1}};
  check_cpu("LayerNorm", attributes, {x, five, five});
  check_cpu("RmsNorm", attributes, {x, five});
}

TEST(LayerNormImport, StatisticsKeepTheirAxes) {
  const HostTensor x = floats({1, 2, 2}, {1, 3, 2, 6});
  const Imported imported =
      import_node("LayerNormalization", 17, {{"epsilon", 0.0}},
                  {data(x), data(floats({2}, {1, 1})), data(floats({1}, {0.5}))}, 3);
  const auto out = imported.run();
  expect_values(out[0], {1, 2, 2}, {-0.5, 1.5, -0.5, 1.5});
  expect_values(out[1], {1, 2, 1}, {2, 4});
  expect_values(out[2], {1, 2, 1}, {1, 0.5});
}

// Scale and bias are broadcast to the input.
TEST(LayerNormImport, ScalesOfMoreAxes) {
  const ImportInput x = data(floats({2, 1, 2}, {1, 3, 2, 6}));
  const auto imported = [&](HostTensor scale, HostTensor bias) {
    return import_node("LayerNormalization", 17, {{"epsilon", 0.0}},
                       {x, data(std::move(scale)), data(std::move(bias))});
  };
  const Imported vectors = imported(floats({1, 1, 2}, {1, 2}), floats({1, 2}, {0, 1}));
  EXPECT_EQ(vectors.ops().find("Mul"), std::string::npos) << vectors.ops();
  expect_values(vectors.run()[0], {2, 1, 2}, {-1, 3, -1, 3});
  expect_values(imported(floats({2, 1, 2}, {1, 2, 3, 4}), floats({2}, {0, 1})).run()[0], {2, 1, 2},
                {-1, 3, -3, 5});
  expect_values(imported(floats({2}, {1, 2}), floats({2, 1, 1}, {5, 7})).run()[0], {2, 1, 2},
                {4, 7, 6, 9});
  expect_error(ErrorKind::kModel, "more elements",
               [&] { imported(floats({2}, {1, 2}), floats({2, 3, 2}, std::vector<float>(12))); });
}

// The specification's epsilon is 1e-5, large compared with the variance here: 1e-6.
TEST(LayerNormImport, EpsilonWhereNoneIsGiven) {
  const ImportInput x = data(floats({1, 1, 2}, {0, 0.002F})), one = data(floats({1}, {1})),
                    zero = data(floats({1}, {0})), ones = data(floats({2}, {1, 1}));
  const double y = 0.001 / std::sqrt(1e-6 + 1e-5);
  const Attributes groups = {{"num_groups", std::int64_t{1}}};
  expect_values(import_node("LayerNormalization", 17, {}, {x, ones}).run()[0], {1, 1, 2}, {-y, y});
  expect_values(import_node("InstanceNormalization", 6, {}, {x, one, zero}).run()[0], {1, 1, 2},
                {-y, y});
  expect_values(import_node("GroupNormalization", 21, groups, {x, one, zero}).run()[0], {1, 1, 2},
                {-y, y});
  expect_values(import_node("RMSNormalization", 23, {}, {x, ones}).run()[0], {1, 1, 2},
                {0, 0.002 / std::sqrt(2e-6 + 1e-5)});
}

TEST(RmsNorm, GradientsAndCpu) {
  check_gradients("RmsNorm", over(-1), {{{3, 5}}, {{5}, 0.5, 2}});
  check_gradients("RmsNorm", over(1), {{{2, 3, 4}}});
  for (const Shape& shape : {Shape{3, 5}, Shape{70, 384}, Shape{2, 3, 130}}) {
    const Shape scale{shape[shape.rank() - 1]};
    const Shape rows(std::vector<std::int64_t>(shape.begin(), shape.end() - 1));
    check_cpu("RmsNorm", over(-1), {{shape}, {scale}});
    check_cpu("RmsNorm", over(-1), {{shape}});
    check_cpu("RmsNormInputGrad", over(-1), {{shape}, {shape}, {scale}, {rows, 0.5, 2}});
    check_cpu("RmsNormWeightGrad", over(-1), {{shape}, {shape}, {rows, 0.5, 2}});
  }
}

TEST(RmsNormImport, DividesByTheRootMeanSquare) {
  const Imported imported = import_node("RMSNormalization", 23, {{"epsilon", 0.0}},
                                        {data(floats({1, 2}, {1, 7})), data(floats({2}, {1, 2}))});
  expect_values(imported.run()[0], {1, 2}, {0.2, 2.8});
}

}  // namespace
}  // namespace pipetrain::test
