#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// The first output of a node whose inputs are data.
HostTensor result(std::string_view op, std::int64_t opset, const Attributes& attributes,
                  const std::vector<ImportInput>& inputs) {
  const Imported node = import_node(op, opset, attributes, inputs);
  EXPECT_FALSE(node.is_constant()) << op;
  const HostTensor reference = node.run()[0];
  expect_close(node.run(Backend::kCpu)[0], reference, 1e-5, op);
  return reference;
}

TEST(Composed, NormsOfZerosAreZero) {
  const HostTensor x = floats({2, 2}, {3, -4, 0, 0});
  expect_values(result("LpNormalization", 22, {}, {data(x)}), {2, 2}, {0.6, -0.8, 0, 0});
  expect_values(result("LpNormalization", 22, {{"p", std::int64_t{1}}}, {data(x)}), {2, 2},
                {3.0 / 7, -4.0 / 7, 0, 0});
  expect_values(result("ReduceL2", 18, {}, {data(x), constant(int64s({1}, {1}))}), {2, 1}, {5, 0});
  const HostTensor image = floats({1, 1, 2, 3}, {3, -4, 0, 0, 0, 0});
  const Attributes window = {{"kernel_shape", Ints{2, 2}}, {"p", std::int64_t{2}}};
  expect_values(result("LpPool", 22, window, {data(image)}), {1, 1, 1, 2}, {5, 4});
  const Attributes cubes = {{"p", std::int64_t{3}}};
  expect_values(result("GlobalLpPool", 22, cubes, {data(image)}), {1, 1, 1, 1},
                {std::cbrt(27.0 + 64)});
}

TEST(Composed, NormsOfNanAreNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const ImportInput row = data(floats({1, 2}, {nan, 1})),
                    image = data(floats({1, 1, 1, 2}, {nan, 1}));
  const auto first = [](const char* op, const Attributes& attributes,
                        const std::vector<ImportInput>& inputs) {
    return import_node(op, 18, attributes, inputs).run()[0].to_doubles()[0];
  };
  EXPECT_TRUE(std::isnan(first("ReduceL2", {}, {row, constant(int64s({1}, {1}))})));
  EXPECT_TRUE(std::isnan(first("LpNormalization", {}, {row})));
  EXPECT_TRUE(std::isnan(first("LpPool", {{"kernel_shape", Ints{1, 2}}}, {image})));
  EXPECT_TRUE(std::isnan(first("GlobalLpPool", {}, {image})));
}

// The gradient of a norm at zero is undefined; 0 keeps training alive where NaN would end it.
TEST(Composed, NormsOfZerosHaveNoInfiniteGradient) {
  Imported node =
      import_node("ReduceL2", 18, {}, {data(floats({2}, {0, 0})), constant(int64s({1}, {0}))});
  GraphBuilder builder = make_builder(node.graph);
  const auto forward = node.graph.nodes.size();
  // Backward through a chain: every node here has one differentiable use.
  std::map<ValueId, ValueId> gradient;
  gradient[node.outputs[0]] = builder.constant(floats({1}, {1}));
  for (std::size_t n = forward; n-- > 0;) {
    const NodeId id{static_cast<int>(n)};
    const std::vector<ValueId> inputs = node.graph[id].inputs;
    const ValueId out = node.graph[id].outputs[0];
    if (!gradient.count(out) || !node.graph[id].op->differentiate) continue;
    bool wanted[3] = {};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      wanted[i] = node.graph[inputs[i]].role != Role::kConstant &&
                  is_float(node.graph[inputs[i]].type.dtype);
    }
    const std::span<const bool> wants(wanted, inputs.size());
    GradientContext context(builder, id, std::span<const ValueId>(&gradient[out], 1), wants);
    node.graph[id].op->differentiate(context);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ValueId part = context.input_gradients()[i];
      if (!part) continue;
      ValueId& sum = gradient[inputs[i]];
      sum = sum ? builder.add("Add", {sum, part}) : part;
    }
  }
  const ValueId dx = gradient.at(node.inputs[0]);
  const auto values = run_graph(node.graph, Backend::kReference, node.feeds);
  expect_values(values[static_cast<std::size_t>(dx.index)], {2}, {0, 0});
}

TEST(Composed, LocalResponseNormalization) {
  const HostTensor x = floats({1, 3, 1, 2}, {1, 2, 3, 4, 5, 6});
  const Attributes attributes = {
      {"size", std::int64_t{2}}, {"alpha", 0.5}, {"beta", 0.5}, {"bias", 2.0}};
  // A window of two channels: the channel itself and the next one.
  const auto y = [](double a, double next) {
    return a / std::sqrt(2 + 0.5 / 2 * (a * a + next * next));
  };
  expect_values(result("LRN", 13, attributes, {data(x)}), {1, 3, 1, 2},
                {y(1, 3), y(2, 4), y(3, 5), y(4, 6), y(5, 0), y(6, 0)});
}

TEST(Composed, DefaultsOfLocalResponseNormalization) {
  const HostTensor x = floats({1, 2, 1, 1}, {100, 200});
  // alpha = 1e-4, beta = 0.75 and bias = 1; a window of one channel.
  const auto y = [](double a) { return a / std::pow(1 + 1e-4 * a * a, 0.75); };
  expect_values(result("LRN", 13, {{"size", std::int64_t{1}}}, {data(x)}), {1, 2, 1, 1},
                {y(100), y(200)});
}

TEST(Composed, HardmaxAndOneHot) {
  const HostTensor x = floats({2, 3}, {1, 5, 5, 4, 2, 3});
  expect_values(result("Hardmax", 13, {}, {data(x)}), {2, 3}, {0, 1, 0, 1, 0, 0});
  expect_values(result("Hardmax", 13, {{"axis", std::int64_t{0}}}, {data(x)}), {2, 3},
                {0, 1, 1, 1, 0, 0});
  // Before opset 13 everything from the axis on is one axis.
  expect_values(result("Hardmax", 11, {{"axis", std::int64_t{0}}}, {data(x)}), {2, 3},
                {0, 1, 0, 0, 0, 0});
  for (const std::int64_t axis : {-1, 0}) {
    const HostTensor hot = result(
        "OneHot", 11, {{"axis", axis}},
        {data(int64s({3}, {1, -1, 7})), constant(int64s({}, {3})), constant(floats({2}, {0, 1}))});
    if (axis == 0) {
      expect_values(hot, {3, 3}, {0, 0, 0, 1, 0, 0, 0, 1, 0});
    } else {
      expect_values(hot, {3, 3}, {0, 1, 0, 0, 0, 1, 0, 0, 0});
    }
  }
}

// Golden: onnxruntime's. Before opset 13 the default axis is 1, and all axes from it on are
// flattened; since 13 it is the last axis only.
TEST(Composed, HardmaxAxesOfEveryOpset) {
  const HostTensor x = floats({2, 3, 2}, {1, 3, 2, 3, 0, -1, 4, 4, -2, 5, 1, 0});
  const Attributes first = {{"axis", std::int64_t{0}}}, last = {{"axis", std::int64_t{-1}}};
  const std::vector<double> pairs = {0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0};
  for (const std::int64_t opset : {1, 11}) {
    SCOPED_TRACE(opset);
    expect_values(result("Hardmax", opset, {}, {data(x)}), {2, 3, 2},
                  {0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0});
    expect_values(result("Hardmax", opset, first, {data(x)}), {2, 3, 2},
                  {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0});
    expect_values(result("Hardmax", opset, last, {data(x)}), {2, 3, 2}, pairs);
  }
  expect_values(result("Hardmax", 13, {}, {data(x)}), {2, 3, 2}, pairs);
  expect_values(result("Hardmax", 13, first, {data(x)}), {2, 3, 2},
                {0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1});
}

TEST(Composed, CropsAndPadsAroundTheCentre) {
  const HostTensor x = floats({1, 5}, {1, 2, 3, 4, 5});
  const auto to = [&](std::int64_t size) {
    return result("CenterCropPad", 18, {{"axes", Ints{-1}}},
                  {data(x), constant(int64s({1}, {size}))});
  };
  expect_values(to(2), {1, 2}, {2, 3});
  expect_values(to(3), {1, 3}, {2, 3, 4});
  expect_values(to(8), {1, 8}, {0, 1, 2, 3, 4, 5, 0, 0});
}

// Columns of ones: how many windows cover each pixel.
TEST(Composed, Col2ImAddsOverlappingWindows) {
  const HostTensor ones = random_tensor({DType::kFloat32, {2, 8, 4}}, 1, 1, 1);
  expect_values(result("Col2Im", 18, {},
                       {data(ones), constant(int64s({2}, {3, 3})), constant(int64s({2}, {2, 2}))}),
                {2, 2, 3, 3}, {1, 2, 1, 2, 4, 2, 1, 2, 1, 1, 2, 1, 2, 4, 2, 1, 2, 1,
                               1, 2, 1, 2, 4, 2, 1, 2, 1, 1, 2, 1, 2, 4, 2, 1, 2, 1});
  expect_error(ErrorKind::kModel, "Col2Im needs (2, 8, 3, 3) columns", [&] {
    import_node("Col2Im", 18, {},
                {data(ones), constant(int64s({2}, {4, 4})), constant(int64s({2}, {2, 2}))});
  });
}

TEST(Composed, RearrangementsByConstants) {
  const HostTensor x = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  expect_values(result("Compress", 11, {{"axis", std::int64_t{0}}},
                       {data(x), constant(bools({3}, {0, 1, 1}))}),
                {2, 2}, {3, 4, 5, 6});
  expect_values(result("Compress", 11, {}, {data(x), constant(bools({4}, {1, 0, 0, 1}))}), {2},
                {1, 4});
  expect_values(result("ReverseSequence", 10, {}, {data(x), constant(int64s({2}, {2, 3}))}), {3, 2},
                {3, 6, 1, 4, 5, 2});
  // Two planes of one pooled value each, found at the last and the first pixel.
  const HostTensor pooled = floats({1, 2, 1, 1}, {7, 8});
  const Attributes window = {{"kernel_shape", Ints{1, 2}}};
  expect_values(result("MaxUnpool", 22, window, {data(pooled), data(int64s({1, 2, 1, 1}, {1, 2}))}),
                {1, 2, 1, 2}, {0, 7, 8, 0});
  // ONNX's own case: the indices are offsets into 2 pixels, and the third is added.
  expect_values(result("MaxUnpool", 22, window,
                       {data(pooled), data(int64s({1, 2, 1, 1}, {1, 2})),
                        constant(int64s({4}, {1, 2, 1, 3}))}),
                {1, 2, 1, 3}, {0, 7, 0, 8, 0, 0});
  expect_error(ErrorKind::kModel, "before training", [&] {
    import_node("Compress", 11, {}, {data(x), data(bools({6}, {1, 0, 0, 1, 0, 0}))});
  });
}

// As in PyTorch and ONNX Runtime, indices are offsets into the result: what was found among five
// elements returns to its places there.
TEST(Composed, MaxUnpoolIntoAGivenShape) {
  const HostTensor x = floats({1, 2, 5}, {9, 1, 8, 2, 0, 9, 1, 2, 8, 0});
  const Attributes window = {{"kernel_shape", Ints{2}}, {"strides", Ints{2}}};
  const ImportMode mode;
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  builder.set_origin("test", Part::kForward);
  Value input;
  input.name = "x";
  input.type = x.type();
  input.role = Role::kInput;
  const ValueId in = builder.add_value(std::move(input));
  const auto unpooled = [&](const ValueId values, const ValueId indices, const Shape& shape) {
    const ValueId given = builder.constant(int64s({3}, shape.dims()));
    ImportContext unpool(builder, "MaxUnpool", 22, window, {values, indices, given}, 1, mode);
    find_import("MaxUnpool")->import(unpool);
    return static_cast<std::size_t>(unpool.outputs()[0].index);
  };
  ImportContext pool(builder, "MaxPool", 22, window, {in}, 2, mode);
  find_import("MaxPool")->import(pool);
  const ValueId found = pool.outputs()[0], indices = pool.outputs()[1];
  const std::size_t same = unpooled(found, indices, {1, 2, 5});
  const std::size_t wider = unpooled(found, indices, {1, 2, 6});
  const auto values = run_graph(graph, Backend::kReference, {{in, x}});
  expect_values(values[same], {1, 2, 5}, {9, 0, 8, 0, 0, 9, 0, 0, 8, 0});
  expect_values(values[wider], {1, 2, 6}, {9, 0, 8, 0, 0, 9, 0, 0, 8, 0, 0, 0});
}

// The identity gives the grid positions.
TEST(Composed, AffineGridOfTheIdentity) {
  const HostTensor theta = floats({1, 2, 3}, {1, 0, 0, 0, 1, 0});
  expect_values(result("AffineGrid", 20, {{"align_corners", std::int64_t{1}}},
                       {data(theta), constant(int64s({4}, {1, 1, 2, 2}))}),
                {1, 2, 2, 2}, {-1, -1, 1, -1, -1, 1, 1, 1});
  expect_values(result("AffineGrid", 20, {}, {data(theta), constant(int64s({4}, {1, 1, 1, 2}))}),
                {1, 1, 2, 2}, {-0.5, 0, 0.5, 0});
  // An axis of one element: PyTorch's middle.
  expect_values(result("AffineGrid", 20, {{"align_corners", std::int64_t{1}}},
                       {data(theta), constant(int64s({4}, {1, 1, 1, 2}))}),
                {1, 1, 2, 2}, {-1, 0, 1, 0});
}

}  // namespace
}  // namespace pipetrain::test
