#include "passes/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "graph/op.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/fuse_elementwise.h"
#include "support/cut_graphs.h"
#include "support/op_check.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

HostTensor weights(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  float next = 0.3F;
  for (float& x : out.span<float>()) x = next = 3.6F * next * (1 - next);
  return out;
}

TrainingGraph build(const OnnxModel& model, DType precision, bool gradients = true) {
  BuildOptions options;
  options.lower.micro_batch = 3;
  options.precision = precision;
  options.with_gradients = gradients;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

/// x → Gemm w1 → LayerNorm → Gemm w2, added to the first's result → Softmax → Gemm w3.
OnnxModel mixed_network() {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w1", weights({6, 8}));
  builder.initializer("b1", weights({8}));
  builder.initializer("scale", weights({8}));
  builder.initializer("w2", weights({8, 8}));
  builder.initializer("w3", weights({8, 4}));
  builder.node("Gemm", {"x", "w1", "b1"}, {"h"}, {}, "first");
  builder.node("LayerNormalization", {"h", "scale"}, {"n"}, {}, "norm");
  builder.node("Relu", {"n"}, {"r"}, {}, "relu");
  builder.node("MatMul", {"r", "w2"}, {"m"}, {}, "second");
  builder.node("Add", {"h", "m"}, {"sum"}, {}, "sum");
  builder.node("Softmax", {"sum"}, {"s"}, {OnnxAttribute::of_int("axis", -1)}, "softmax");
  builder.node("MatMul", {"s", "w3"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

std::map<std::string, DType> types_of(const TrainingGraph& training, Part part) {
  std::map<std::string, DType> out;
  for (const Node& node : training.graph.nodes) {
    if (node.part == part) {
      out[training.graph[node.outputs[0]].name] = training.graph[node.outputs[0]].type.dtype;
    }
  }
  return out;
}

constexpr DType kWide = DType::kFloat32;
constexpr DType kNarrow = DType::kBFloat16;

TEST(Precision, StoresWhatProductsReadAndMakeNarrow) {
  const TrainingGraph training = build(mixed_network(), kNarrow);
  const std::map<std::string, DType> prepared = types_of(training, Part::kPrepare);
  EXPECT_EQ(prepared,
            (std::map<std::string, DType>{
                {"w1 rounded", kNarrow}, {"w2 rounded", kNarrow}, {"w3 rounded", kNarrow}}));
  const std::map<std::string, DType> forward = types_of(training, Part::kForward);
  // The softmax computes in float; only the product reads its result.
  const std::map<std::string, DType> expected = {
      {"x rounded", kNarrow}, {"h", kNarrow},         {"n", kNarrow},
      {"r", kNarrow},         {"m", kNarrow},         {"sum", kNarrow},
      {"s", kWide},           {"s rounded", kNarrow}, {"logits", kNarrow}};
  for (const auto& [name, dtype] : expected) {
    ASSERT_TRUE(forward.contains(name)) << name;
    EXPECT_EQ(forward.at(name), dtype) << name;
  }
  const TrainingGraph evaluated = build(mixed_network(), kNarrow, /*gradients=*/false);
  EXPECT_EQ(types_of(evaluated, Part::kForward).at("logits"), kWide);
}

TEST(Precision, StatisticsOfNormsStayFloat) {
  const TrainingGraph training = build(mixed_network(), kNarrow);
  int norms = 0;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name != "LayerNorm") continue;
    ++norms;
    EXPECT_EQ(training.graph[node.outputs[0]].type.dtype, kNarrow);
    EXPECT_EQ(training.graph[node.outputs[1]].type.dtype, kWide);
    EXPECT_EQ(training.graph[node.outputs[2]].type.dtype, kWide);
  }
  EXPECT_EQ(norms, 1);
}

TEST(Precision, FunctionsThatNeedTheirBitsStayFloat) {
  for (const char* op : {"Exp", "Log", "Sqrt", "Reciprocal"}) {
    OnnxBuilder builder("net");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
    builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
    builder.initializer("w1", weights({6, 8}));
    builder.initializer("w2", weights({8, 4}));
    builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "first");
    builder.node(op, {"h"}, {"f"}, {}, "function");
    builder.node("Relu", {"f"}, {"r"}, {}, "relu");
    builder.node("MatMul", {"r", "w2"}, {"logits"}, {}, "head");
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    const std::map<std::string, DType> forward = types_of(build(model, kNarrow), Part::kForward);
    EXPECT_EQ(forward.at("f"), kWide) << op;
  }
}

/// The forward node of an operator.
const Node& node_of(const TrainingGraph& training, std::string_view op) {
  const auto found = std::ranges::find_if(training.graph.nodes, [&](const Node& node) {
    return node.op->name == op && node.part == Part::kForward;
  });
  EXPECT_NE(found, training.graph.nodes.end()) << op;
  return *found;
}

/// x → MatMul → `nodes` from h, rows of 8, to r, rows of `width` → MatMul.
TrainingGraph build_between(std::int64_t width, const std::function<void(OnnxBuilder&)>& nodes) {
  OnnxBuilder builder("net", {.opset = 19, .ir_version = 9});
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w1", weights({6, 8}));
  builder.initializer("w2", weights({width, 4}));
  builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "first");
  nodes(builder);
  builder.node("MatMul", {"r", "w2"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  return build(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}), kNarrow);
}

// 300² is infinite in float16.
TEST(Precision, SquaresOfNormsStayFloat) {
  const TrainingGraph training = build_between(8, [](OnnxBuilder& builder) {
    builder.node("LpNormalization", {"h"}, {"r"}, {OnnxAttribute::of_int("axis", -1)}, "norm");
  });
  const ValueId squares = node_of(training, "ReduceSum").inputs[0];
  EXPECT_EQ(training.graph[squares].type.dtype, kWide);
}

TEST(Precision, FourierTransformsStayFloat) {
  const TrainingGraph training = build_between(16, [](OnnxBuilder& builder) {
    builder.initializer("signal",
                        HostTensor::of<std::int64_t>(Shape{3}, std::vector<std::int64_t>{0, 8, 1}));
    builder.initializer("row",
                        HostTensor::of<std::int64_t>(Shape{2}, std::vector<std::int64_t>{0, 16}));
    builder.node("Reshape", {"h", "signal"}, {"s"}, {}, "as_signal");
    builder.node("DFT", {"s"}, {"d"}, {OnnxAttribute::of_int("axis", 1)}, "transform");
    builder.node("Reshape", {"d", "row"}, {"r"}, {}, "as_row");
  });
  int transforms = 0;
  for (const Node& node : training.graph.nodes) {
    if (!node.attributes.flag("keep_float")) continue;
    ++transforms;
    for (const ValueId id : node.inputs)
      EXPECT_EQ(training.graph[id].type.dtype, kWide) << node.name;
  }
  EXPECT_EQ(transforms, 2);  // forward and gradient
}

// bfloat16 has 8 bits, less than a pixel of a row of 512.
TEST(Precision, SamplingPositionsStayFloat) {
  const TrainingGraph training = build_between(8, [](OnnxBuilder& builder) {
    builder.initializer(
        "image", HostTensor::of<std::int64_t>(Shape{4}, std::vector<std::int64_t>{0, 2, 2, 2}));
    builder.initializer("row",
                        HostTensor::of<std::int64_t>(Shape{2}, std::vector<std::int64_t>{0, 8}));
    builder.initializer("wo", weights({2, 2, 1, 1}));
    builder.initializer("wd", weights({2, 2, 1, 1}));
    builder.node("Reshape", {"h", "image"}, {"i"}, {}, "as_image");
    builder.node("Conv", {"i", "wo"}, {"offsets"}, {}, "offsets");
    builder.node("DeformConv", {"i", "wd", "offsets"}, {"d"}, {}, "deformed");
    builder.node("Reshape", {"d", "row"}, {"r"}, {}, "as_row");
  });
  EXPECT_EQ(training.graph[node_of(training, "GridSample").inputs[1]].type.dtype, kWide);
}

HostTensor ints(const std::vector<std::int64_t>& values) {
  return HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(values.size())}, values);
}

/// Positions of pixels, moved by a convolution, in [-1, 1].
TEST(Precision, SamplingPositionsOfAFlowStayFloat) {
  const TrainingGraph training = build_between(8, [](OnnxBuilder& builder) {
    builder.initializer("image", ints({0, 2, 2, 2}));
    builder.initializer("row", ints({0, 8}));
    builder.initializer("wo", weights({2, 2, 1, 1}));
    builder.initializer("pixels", weights({1, 2, 2, 2}));
    builder.initializer("two", HostTensor::scalar<float>(2));
    builder.initializer("one", HostTensor::scalar<float>(1));
    builder.node("Reshape", {"h", "image"}, {"i"}, {}, "as_image");
    builder.node("Conv", {"i", "wo"}, {"flow"}, {}, "flow");
    builder.node("Add", {"pixels", "flow"}, {"moved"}, {}, "moved");
    builder.node("Mul", {"moved", "two"}, {"twice"}, {}, "twice");
    builder.node("Sub", {"twice", "one"}, {"scaled"}, {}, "scaled");
    builder.node("Transpose", {"scaled"}, {"grid"}, {OnnxAttribute::of_ints("perm", {0, 2, 3, 1})},
                 "grid");
    builder.node("GridSample", {"i", "grid"}, {"s"}, {}, "sampled");
    builder.node("Reshape", {"s", "row"}, {"r"}, {}, "as_row");
  });
  const std::map<std::string, DType> forward = types_of(training, Part::kForward);
  for (const char* name : {"flow", "moved", "twice", "scaled", "grid"})
    EXPECT_EQ(forward.at(name), kWide) << name;
  EXPECT_EQ(forward.at("h"), kNarrow);
}

TEST(Precision, SamplingPositionsOfAnAffineGridStayFloat) {
  const TrainingGraph training = build_between(8, [](OnnxBuilder& builder) {
    builder.initializer("image", ints({0, 2, 2, 2}));
    builder.initializer("row", ints({0, 8}));
    builder.initializer("size", ints({3, 2, 2, 2}));
    builder.initializer("affine", ints({0, 2, 3}));
    builder.initializer("wt", weights({8, 6}));
    builder.node("Reshape", {"h", "image"}, {"i"}, {}, "as_image");
    builder.node("MatMul", {"h", "wt"}, {"six"}, {}, "six");
    builder.node("Reshape", {"six", "affine"}, {"theta"}, {}, "theta");
    builder.node("AffineGrid", {"theta", "size"}, {"grid"}, {}, "grid");
    builder.node("GridSample", {"i", "grid"}, {"s"}, {}, "sampled");
    builder.node("Reshape", {"s", "row"}, {"r"}, {}, "as_row");
  });
  int products = 0;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name != "MatMul" || node.name != "grid") continue;
    ++products;
    for (const ValueId id : node.inputs) EXPECT_EQ(training.graph[id].type.dtype, kWide);
  }
  EXPECT_EQ(products, 2);  // forward and gradient
  EXPECT_EQ(types_of(training, Part::kForward).at("six"), kWide);
}

TEST(Precision, FloatStaysWhereItIsPromised) {
  for (const bool tied : {false, true}) {
    const TrainingGraph training = build(test::difficult_network(tied), kNarrow);
    const Graph& graph = training.graph;
    for (const Parameter& parameter : training.parameters) {
      EXPECT_EQ(graph[parameter.value].type.dtype, kWide);
      EXPECT_EQ(graph[parameter.gradient].type.dtype, kWide);
    }
    for (const Accumulation& use : training.accumulations) {
      EXPECT_EQ(graph[use.contribution].type.dtype, kWide);
      EXPECT_EQ(graph[use.accumulator].type.dtype, kWide);
    }
    for (const RunningStatistic& statistic : training.statistics) {
      EXPECT_EQ(graph[statistic.batch_mean].type.dtype, kWide);
      EXPECT_EQ(graph[statistic.batch_variance].type.dtype, kWide);
    }
    const TrainingGraph evaluated = build(test::difficult_network(tied), kNarrow, false);
    for (const ValueId id : evaluated.outputs) EXPECT_EQ(evaluated.graph[id].type.dtype, kWide);
    EXPECT_EQ(graph[training.loss.loss_sum].type.dtype, kWide);
    int products = 0;
    for (const Node& node : graph.nodes) {
      const bool product = node.op->name == "MatMul" || node.op->name.starts_with("Conv");
      if (product) {
        ++products;
        EXPECT_EQ(graph[node.inputs[0]].type.dtype, kNarrow) << node.name;
        EXPECT_EQ(graph[node.inputs[1]].type.dtype, kNarrow) << node.name;
      }
      if (node.op->flags & kView) {
        EXPECT_EQ(graph[node.inputs[0]].type.dtype, graph[node.outputs[0]].type.dtype);
      }
    }
    EXPECT_GT(products, 10);
  }
}

// What a regression is trained on is what it promises.
TEST(Precision, OutputsOfOtherLossesStayFloat) {
  const OnnxModel model = mixed_network();
  BuildOptions options;
  options.lower.micro_batch = 3;
  options.precision = kNarrow;
  options.loss.loss = "mse";
  const TrainingGraph training = build_training_graph(model, classify_tensors(model, {}), options);
  for (const ValueId id : training.outputs) EXPECT_EQ(training.graph[id].type.dtype, kWide);
}

TEST(Precision, GradientsOfSlicesWithGapsAreNarrow) {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w1", weights({6, 8}));
  builder.initializer("b1", weights({8}));  // whose gradient is a sum, and no product
  builder.initializer("w2", weights({3, 4}));
  for (const std::int64_t n : {0, 1, 3, 4, 7})
    builder.initializer(std::to_string(n), HostTensor::of<std::int64_t>({1}, std::vector{n}));
  builder.node("Gemm", {"x", "w1", "b1"}, {"h"}, {}, "first");
  builder.node("Slice", {"h", "0", "3", "1"}, {"a"}, {}, "head");
  builder.node("Slice", {"h", "4", "7", "1"}, {"b"}, {}, "tail");
  builder.node("MatMul", {"a", "w2"}, {"p"}, {}, "second");
  builder.node("MatMul", {"b", "w2"}, {"q"}, {}, "third");
  builder.node("Add", {"p", "q"}, {"y"}, {}, "sum");
  const std::string bytes = builder.bytes();
  const TrainingGraph training =
      build(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}), kNarrow);
  const auto joined = std::ranges::find(training.graph.nodes, "Concat",
                                        [](const Node& node) { return node.op->name; });
  ASSERT_NE(joined, training.graph.nodes.end());
  EXPECT_EQ(training.graph[joined->outputs[0]].type.dtype, kNarrow);
}

TEST(Precision, AWeightIsRoundedOnceForAllItsUses) {
  const TrainingGraph training = build(test::difficult_network(/*tied=*/true), kNarrow);
  std::map<int, int> casts;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name == "Cast" && node.part == Part::kPrepare) ++casts[node.inputs[0].index];
  }
  EXPECT_GT(casts.size(), 2U);
  for (const auto& [value, count] : casts) EXPECT_EQ(count, 1) << value;
}

/// Three products read a norm over sequences, the first one as rows, and an addition reads it, too;
/// weight gradients read both of their operands under another shape.
TEST(Precision, WhatOtherShapesReadIsRoundedOnce) {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 5}, {"", 6}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("scale", weights({6}));
  builder.initializer("w1", weights({6, 6}));
  builder.initializer("w2", weights({6, 6}));
  for (const char* name : {"w3", "w4"}) builder.initializer(name, weights({30, 4}));
  builder.node("LayerNormalization", {"x", "scale"}, {"n"}, {}, "norm");
  builder.node("Flatten", {"n"}, {"row"}, {}, "row");
  builder.node("MatMul", {"row", "w4"}, {"early"}, {}, "early");
  builder.node("MatMul", {"n", "w1"}, {"p"}, {}, "first");
  builder.node("MatMul", {"n", "w2"}, {"q"}, {}, "second");
  builder.node("Mul", {"p", "q"}, {"pq"}, {}, "product");
  builder.node("Add", {"n", "pq"}, {"sum"}, {}, "sum");
  builder.node("Flatten", {"sum"}, {"flat"}, {}, "flat");
  builder.node("MatMul", {"flat", "w3"}, {"late"}, {}, "late");
  builder.node("Add", {"early", "late"}, {"y"}, {}, "both");
  const std::string bytes = builder.bytes();
  const TrainingGraph training =
      build(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}), kNarrow);
  const Graph& graph = training.graph;
  const auto root = [&](ValueId id) {
    while (graph[id].producer && (graph[graph[id].producer].op->flags & kView))
      id = graph[graph[id].producer].inputs[0];
    return id;
  };
  std::map<std::pair<int, int>, int> casts;  // by what is rounded and the node it is a gradient of
  for (const Node& node : graph.nodes) {
    if (node.op->name == "Cast")
      EXPECT_EQ(++casts[std::pair(root(node.inputs[0]).index, node.gradient_of.index)], 1)
          << node.name;
    if (node.part != Part::kWeightGradient || node.op->name != "MatMul") continue;
    for (const ValueId id : node.inputs) EXPECT_EQ(graph[id].type.dtype, kNarrow) << node.name;
  }
  const auto is_cast_of_norm = [&](const auto& cast) {
    return graph[ValueId{cast.first.first}].name == "n";
  };
  EXPECT_EQ(std::ranges::count_if(casts, is_cast_of_norm), 1);
}

// An LSTM's states are an output, in float: the head rounds them, the recurrence's gradient too.
TEST(Precision, GradientsReadNoCopyOfALaterStage) {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 5}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 20}});
  builder.output("states", DType::kFloat32, {{"", 5}, {"batch", -1}, {"", 8}});
  builder.initializer("w", weights({1, 32, 6}));
  builder.initializer("r", weights({1, 32, 8}));
  builder.initializer("v", weights({8, 4}));
  builder.initializer("direction", ints({1}));
  const std::vector<OnnxAttribute> turned = {OnnxAttribute::of_ints("perm", {1, 0, 2})};
  builder.node("Transpose", {"x"}, {"steps"}, turned, "steps");
  builder.node("LSTM", {"steps", "w", "r"}, {"y"}, {OnnxAttribute::of_int("hidden_size", 8)},
               "lstm");
  builder.node("Squeeze", {"y", "direction"}, {"states"}, {}, "states");
  builder.node("MatMul", {"states", "v"}, {"scores"}, {}, "head");
  builder.node("Transpose", {"scores"}, {"samples"}, turned, "samples");
  builder.node("Flatten", {"samples"}, {"logits"}, {}, "logits");
  const std::string bytes = builder.bytes();
  const TrainingGraph training =
      build(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}), kNarrow);
  EXPECT_EQ(training.graph[node_of(training, "Lstm").outputs[0]].type.dtype, kWide);
  EXPECT_NO_THROW(test::cut_everywhere(training)) << training.graph.to_text();
}

/// A convolution whose weight is computed in the forward pass, since it is multiplied by what the
/// input says (1): the gradient of the product that computes it reads the weight's gradient, which
/// is stored narrow.
OnnxModel network_with_computed_filters() {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 16}, {"", 8}, {"", 8}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  builder.initializer("a", test::random_tensor({DType::kFloat32, {16, 1, 4}}, 1, -0.3, 0.3));
  builder.initializer("basis", test::random_tensor({DType::kFloat32, {4, 9}}, 2, -0.3, 0.3));
  builder.initializer("v", test::random_tensor({DType::kFloat32, {16, 5}}, 3));
  builder.initializer("all",
                      HostTensor::of<std::int64_t>({3}, std::vector<std::int64_t>{16, 16, 4}));
  builder.initializer("window",
                      HostTensor::of<std::int64_t>({4}, std::vector<std::int64_t>{16, 16, 3, 3}));
  builder.initializer("zero", HostTensor::scalar<float>(0));
  builder.initializer("one", HostTensor::scalar<float>(1));
  builder.node("ReduceMean", {"x"}, {"mean"}, {OnnxAttribute::of_int("keepdims", 0)}, "mean");
  builder.node("Mul", {"mean", "zero"}, {"nothing"}, {}, "nothing");
  builder.node("Add", {"nothing", "one"}, {"scale"}, {}, "scale");
  builder.node("Expand", {"a", "all"}, {"repeated"}, {}, "expand");
  builder.node("Mul", {"repeated", "scale"}, {"scaled"}, {}, "scaled");
  builder.node("MatMul", {"scaled", "basis"}, {"flat"}, {}, "filters");
  builder.node("Reshape", {"flat", "window"}, {"weight"}, {}, "window");
  builder.node("Conv", {"x", "weight"}, {"map"}, {OnnxAttribute::of_ints("pads", {1, 1, 1, 1})},
               "conv");
  builder.node("GlobalAveragePool", {"map"}, {"pooled"}, {}, "pool");
  builder.node("Flatten", {"pooled"}, {"row"}, {}, "row");
  builder.node("MatMul", {"row", "v"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

/// The loss and all gradients over 8 samples in micro-batches of `samples`.
std::vector<double> loss_and_gradients(std::int64_t samples) {
  const OnnxModel model = network_with_computed_filters();
  BuildOptions options;
  options.lower.micro_batch = samples;
  options.precision = kNarrow;
  const TrainingGraph training = build_training_graph(model, classify_tensors(model, {}), options);
  const bool narrow = std::ranges::any_of(training.graph.nodes, [&](const Node& node) {
    return node.op->name == "ConvWeightGrad" &&
           training.graph[node.outputs[0]].type.dtype == kNarrow;
  });
  EXPECT_TRUE(narrow) << training.graph.to_text();
  const HostTensor x = test::random_tensor({DType::kFloat32, {8, 16, 8, 8}}, 4),
                   labels = test::random_tensor({DType::kInt64, {8}}, 5, 0, 5);
  const auto rows = [](const HostTensor& of, std::int64_t first, const TensorType& type) {
    HostTensor out(type);
    std::memcpy(out.view().data,
                of.view().as<std::byte>() + static_cast<std::size_t>(first) * of.type().bytes() / 8,
                type.bytes());
    return out;
  };
  std::vector<double> sums;
  for (std::int64_t first = 0; first < 8; first += samples) {
    const ValueId input = training.inputs[0].value, label = training.loss.label;
    test::Feeds feeds = {{input, rows(x, first, training.graph[input].type)},
                         {label, rows(labels, first, training.graph[label].type)},
                         {training.loss.loss_scale, test::floats(Shape{}, {0.125F})}};
    for (const Accumulation& use : training.accumulations)
      feeds[use.accumulator] = HostTensor(training.graph[use.accumulator].type);
    const auto values = test::run_graph(training.graph, Backend::kCpu, feeds);
    std::vector<double> found;
    const auto add = [&](ValueId id) {
      const auto numbers = values[static_cast<std::size_t>(id.index)].to_doubles();
      found.insert(found.end(), numbers.begin(), numbers.end());
    };
    add(training.loss.loss_sum);
    for (const Accumulation& use : training.accumulations) add(use.contribution);
    sums.resize(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) sums[i] += found[i];
  }
  return sums;
}

TEST(Precision, TheGradientOfAComputedWeightMayBeNarrow) {
  const std::vector<double> one = loss_and_gradients(8), eight = loss_and_gradients(1);
  ASSERT_EQ(one.size(), eight.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], eight[i], 0.01) << i;
}

TEST(Precision, FloatLeavesTheGraphAlone) {
  BuildOptions options;
  options.lower.micro_batch = 3;
  const OnnxModel model = mixed_network();
  EXPECT_EQ(build(model, kWide).graph.to_text(),
            build_training_graph(model, classify_tensors(model, {}), options).graph.to_text());
}

TEST(Precision, IsChosenBeforeNodesAreFused) {
  for (const DType narrow : {DType::kFloat32, DType::kBFloat16}) {
    TrainingGraph training = build(test::difficult_network(/*tied=*/false), DType::kFloat32);
    choose_precision(training, DType::kFloat32);
    ASSERT_GT(fuse_elementwise(training), 0);
    try {
      choose_precision(training, narrow);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    }
  }
}

}  // namespace
}  // namespace pipetrain
