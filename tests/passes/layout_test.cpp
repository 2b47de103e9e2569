#include "passes/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/execute.h"
#include "support/cut_graphs.h"
#include "support/test_tensors.h"

namespace pipetrain {
namespace {

HostTensor numbers(Shape shape, unsigned seed) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& x : out.span<float>()) {
    seed = seed * 1664525U + 1013904223U;
    x = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return out;
}

/// x (batch, 3, 12, 12) → stem (32) → two branches that are concatenated (64) → skip → pool → head.
OnnxModel network(const std::string& activation = "Relu") {
  OnnxBuilder builder("convolutions");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 12}, {"", 12}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  const auto conv = [&](const std::string& name, const std::string& from, std::int64_t inputs,
                        std::int64_t outputs, std::int64_t kernel, std::int64_t group = 1) {
    builder.initializer(name + ".w", numbers({outputs, inputs / group, kernel, kernel},
                                             static_cast<unsigned>(name.size() + outputs)));
    const std::int64_t pad = kernel / 2;
    builder.node("Conv", {from, name + ".w"}, {name},
                 {OnnxAttribute::of_ints("pads", {pad, pad, pad, pad}),
                  OnnxAttribute::of_int("group", group)},
                 name);
  };
  const auto relu = [&](const std::string& from) {
    std::vector<OnnxAttribute> attributes;
    if (activation == "LeakyRelu") attributes.push_back(OnnxAttribute::of_float("alpha", 0.25F));
    builder.node(activation, {from}, {from + ".r"}, attributes, from + ".r");
  };
  const auto normalize = [&](const std::string& from) {
    const std::int64_t channels = from == "stem" ? 32 : 64;
    for (const char* what : {".scale", ".shift", ".running_mean", ".running_var"}) {
      builder.initializer(from + what, numbers({channels}, what[1]));
    }
    builder.node(
        "BatchNormalization",
        {from, from + ".scale", from + ".shift", from + ".running_mean", from + ".running_var"},
        {from + ".n"}, {}, from + ".n");
  };
  conv("stem", "x", 3, 32, 3);
  normalize("stem");
  relu("stem.n");
  conv("wide", "stem.n.r", 32, 32, 3);
  conv("depth", "stem.n.r", 32, 32, 3, 32);
  builder.node("Concat", {"wide", "depth"}, {"both"}, {OnnxAttribute::of_int("axis", 1)}, "both");
  normalize("both");
  builder.initializer("six", HostTensor::scalar(1.5F));
  builder.initializer("zero", HostTensor::scalar(0.0F));
  builder.node("Clip", {"both.n", "zero", "six"}, {"both.r"}, {}, "both.r");
  conv("square", "both.r", 64, 64, 3);
  builder.node("Add", {"square", "both.r"}, {"skip"}, {}, "skip");
  builder.node(
      "MaxPool", {"skip"}, {"pool"},
      {OnnxAttribute::of_ints("kernel_shape", {2, 2}), OnnxAttribute::of_ints("strides", {2, 2})},
      "pool");
  conv("point", "pool", 64, 8, 1);
  builder.node("Flatten", {"point"}, {"flat"}, {}, "flat");
  builder.initializer("head.w", numbers({288, 5}, 7));
  builder.node("MatMul", {"flat", "head.w"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph build(const OnnxModel& model, Layout layout,
                    FusionTarget fusion = FusionTarget::kNone, std::int64_t micro_batch = 2) {
  BuildOptions options;
  options.fusion = fusion;
  options.lower.micro_batch = micro_batch;
  options.feature_map_layout = layout;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

std::vector<HostTensor> loss_and_gradients(const TrainingGraph& training) {
  const Shape x = training.graph[training.inputs[0].value].type.shape;
  HostTensor label(training.graph[training.loss.label].type);
  label.span<std::int64_t>().back() = 3;
  std::vector<ValueId> wanted = {training.loss.loss_sum};
  for (const Accumulation& use : training.accumulations) wanted.push_back(use.contribution);
  return execute(training.graph, Backend::kCpu,
                 {{training.inputs[0].value, numbers(x, 1)},
                  {training.loss.label, label},
                  {training.loss.loss_scale, HostTensor::scalar(0.5F)}},
                 wanted);
}

TEST(Layout, OneRegionWithReordersAtItsEdges) {
  const TrainingGraph training = build(network(), Layout::kBlocked8);
  int forward = 0, backward = 0;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name == "Reorder") ++(node.part == Part::kForward ? forward : backward);
  }
  EXPECT_EQ(forward, 1) << training.graph.to_text();   // before Flatten
  EXPECT_EQ(backward, 1) << training.graph.to_text();  // behind it
  EXPECT_EQ(training.graph[training.inputs[0].value].type.layout, Layout::kRowMajor);
}

TEST(Layout, ChannelsLastWithReorderedWeights) {
  const TrainingGraph training = build(network(), Layout::kChannelsLast);
  std::map<Part, int> count;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name == "Reorder") ++count[node.part];
    // What cuDNN takes: all of a convolution alike, but weights' gradients.
    if (!node.op->name.starts_with("Conv")) continue;
    const auto layout = [&](ValueId id) { return training.graph[id].type.layout; };
    const bool weight_gradient = node.op->name == "ConvWeightGrad";
    EXPECT_EQ(layout(node.inputs[0]), Layout::kChannelsLast) << node.name;
    EXPECT_EQ(layout(node.outputs[0]), weight_gradient ? Layout::kRowMajor : Layout::kChannelsLast)
        << node.name;
  }
  const std::string text = training.graph.to_text();
  EXPECT_EQ(count[Part::kPrepare], 3) << text;  // weights, but the depthwise one and that of 1x1
  EXPECT_EQ(count[Part::kForward], 2) << text;  // x, and before Flatten
  EXPECT_EQ(count[Part::kInputGradient] + count[Part::kWeightGradient], 1) << text;
  for (const Accumulation& use : training.accumulations)
    EXPECT_EQ(training.graph[use.contribution].type.layout, Layout::kRowMajor);
}

TEST(Fuse, ActivationsGoIntoTheNormalizationBeforeThem) {
  const TrainingGraph training = build(network(), Layout::kBlocked8);
  int clipped = 0, open = 0;
  for (const Node& node : training.graph.nodes) {
    EXPECT_NE(node.op->name, "Relu");
    EXPECT_NE(node.op->name, "ClipGrad");
    if (node.attributes.has("clip_min")) ++clipped;
    if (node.attributes.flag("clip_open")) ++open;
  }
  // Nothing flows back through a Relu of zero, but through a Clip at its limit.
  EXPECT_EQ(open, 2) << training.graph.to_text();
  EXPECT_EQ(clipped, 4) << training.graph.to_text();  // two, forward and backward
}

TEST(Fuse, ElementwiseActivationsGoIntoTheNormalizationOnCpus) {
  const OnnxModel model = network("LeakyRelu");
  const auto count = [](const TrainingGraph& training, std::string_view op) {
    return std::ranges::count_if(training.graph.nodes, [&](const Node& n) {
      return n.op->name == op && n.attributes.text("activation", "") == "";
    });
  };
  const TrainingGraph apart = build(model, Layout::kBlocked8);
  EXPECT_EQ(count(apart, "LeakyRelu"), 1);
  EXPECT_EQ(count(apart, "LeakyReluGrad"), 1);
  const TrainingGraph fused = build(model, Layout::kBlocked8, FusionTarget::kCpu);
  EXPECT_EQ(count(fused, "LeakyRelu"), 0);
  EXPECT_EQ(count(fused, "LeakyReluGrad"), 0);
  int activated = 0;
  for (const Node& node : fused.graph.nodes) {
    if (node.attributes.text("activation", "") == "") continue;
    EXPECT_EQ(node.attributes.real("alpha", 0), 0.25);
    ++activated;
  }
  EXPECT_EQ(activated, 2) << fused.graph.to_text();  // forward and backward
  const auto expected = loss_and_gradients(apart), actual = loss_and_gradients(fused);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::int64_t k = 0; k < expected[i].type().count(); ++k) {
      const float a = actual[i].span<float>()[static_cast<std::size_t>(k)];
      const float b = expected[i].span<float>()[static_cast<std::size_t>(k)];
      EXPECT_NEAR(a, b, 1e-4F * (1 + std::abs(b))) << i;
    }
  }
}

void expect_same_in_every_layout(const OnnxModel& model, std::int64_t micro_batch = 2) {
  const auto results = [&](Layout layout) {
    return loss_and_gradients(build(model, layout, FusionTarget::kNone, micro_batch));
  };
  const std::vector<HostTensor> plain = results(Layout::kRowMajor);
  for (const Layout layout : {Layout::kBlocked8, Layout::kChannelsLast}) {
    const std::vector<HostTensor> blocked = results(layout);
    ASSERT_EQ(plain.size(), blocked.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      double difference = 0, size = 0;
      ASSERT_EQ(plain[i].type(), blocked[i].type());
      for (std::int64_t k = 0; k < plain[i].type().count(); ++k) {
        const double a = plain[i].span<float>()[static_cast<std::size_t>(k)];
        const double b = blocked[i].span<float>()[static_cast<std::size_t>(k)];
        difference += (a - b) * (a - b);
        size += a * a;
      }
      EXPECT_GT(size, 0) << i;
      EXPECT_LT(difference, 1e-10 * size) << i;
    }
  }
}

TEST(Layout, SameLossAndGradients) { expect_same_in_every_layout(network()); }

// With one sample the gradient of a parameter (1, 16, 12, 12) is that of what it is added to. The
// convolutions around it are blocked all the same.
TEST(Layout, GradientsOfActivationsThatAreThoseOfParameters) {
  OnnxBuilder builder("added");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 12}, {"", 12}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  builder.initializer("stem.weight", numbers({16, 3, 3, 3}, 1));
  builder.initializer("added.weight", numbers({1, 16, 12, 12}, 2));
  builder.initializer("next.weight", numbers({16, 16, 3, 3}, 3));
  const HostTensor head = numbers({16 * 12 * 12, 5}, 4);
  for (float& weight : head.span<float>()) weight *= 1e-3F;  // no logit is far above the others
  builder.initializer("head.weight", head);
  const std::vector<OnnxAttribute> pads = {OnnxAttribute::of_ints("pads", {1, 1, 1, 1})};
  builder.node("Conv", {"x", "stem.weight"}, {"stem"}, pads, "stem");
  builder.node("Add", {"stem", "added.weight"}, {"sum"}, {}, "sum");
  builder.node("Conv", {"sum", "next.weight"}, {"next"}, pads, "next");
  builder.node("Flatten", {"next"}, {"flat"}, {}, "flat");
  builder.node("MatMul", {"flat", "head.weight"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  for (const std::int64_t micro_batch : {1, 2}) {
    expect_same_in_every_layout(model, micro_batch);
    const TrainingGraph training =
        build(model, Layout::kBlocked8, FusionTarget::kNone, micro_batch);
    EXPECT_EQ(training.accumulations.size(), 4U);
    for (const Node& node : training.graph.nodes) {
      if (node.op->name != "Conv" && node.op->name != "Add") continue;
      EXPECT_EQ(training.graph[node.outputs[0]].type.layout, Layout::kBlocked8) << node.name;
    }
  }
}

/// Two convolutions with a normalization, an activation and pooling between them, over so many
/// axes.
OnnxModel network_over(std::size_t axes, const std::string& normalization) {
  OnnxBuilder builder("axes");
  std::vector<OnnxDim> dims{{"batch", -1}, {"", 3}};
  std::vector<std::int64_t> kernel(axes, 3), pads(2 * axes, 1), two(axes, 2), weight{16, 3};
  std::int64_t positions = 1;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    dims.push_back({"", axes == 3 ? 4 : 12});
    positions *= axes == 3 ? 2 : 6;
  }
  builder.input("x", DType::kFloat32, dims);
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  const auto conv = [&](const std::string& name, const std::string& from, std::int64_t inputs) {
    std::vector<std::int64_t> shape{16, inputs};
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    builder.initializer(name + ".w", numbers(Shape(shape), static_cast<unsigned>(inputs)));
    builder.node("Conv", {from, name + ".w"}, {name}, {OnnxAttribute::of_ints("pads", pads)}, name);
  };
  conv("stem", "x", 3);
  std::vector<std::string> inputs{"stem"};
  for (const char* what : {".scale", ".shift", ".running_mean", ".running_var"}) {
    if (normalization != "BatchNormalization" && inputs.size() == 3) break;
    builder.initializer(std::string("norm") + what, numbers({16}, what[1]));
    inputs.push_back(std::string("norm") + what);
  }
  builder.node(normalization, inputs, {"norm"}, {}, "norm");
  builder.node("Relu", {"norm"}, {"relu"}, {}, "relu");
  conv("next", "relu", 16);
  builder.node("Add", {"next", "relu"}, {"sum"}, {}, "sum");
  builder.node(
      "MaxPool", {"sum"}, {"pool"},
      {OnnxAttribute::of_ints("kernel_shape", two), OnnxAttribute::of_ints("strides", two)},
      "pool");
  builder.node("Flatten", {"pool"}, {"flat"}, {}, "flat");
  builder.initializer("head.w", numbers({16 * positions, 5}, 7));
  builder.node("MatMul", {"flat", "head.w"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TEST(Layout, SequencesAndVolumesAreBlockedToo) {
  for (const std::size_t axes : {1, 2, 3}) {
    for (const char* normalization : {"BatchNormalization", "InstanceNormalization"}) {
      const OnnxModel model = network_over(axes, normalization);
      const TrainingGraph training = build(model, Layout::kBlocked8, FusionTarget::kCpu);
      const auto reorders = std::ranges::count_if(
          training.graph.nodes, [](const Node& node) { return node.op->name == "Reorder"; });
      EXPECT_EQ(reorders, 2) << training.graph.to_text();  // before Flatten, and behind it
      const std::vector<HostTensor> plain = loss_and_gradients(build(model, Layout::kRowMajor));
      const std::vector<HostTensor> blocked = loss_and_gradients(training);
      ASSERT_EQ(plain.size(), blocked.size());
      for (std::size_t i = 0; i < plain.size(); ++i)
        test::expect_close(blocked[i], plain[i], 1e-4, normalization);
    }
  }
}

TEST(Layout, GroupNormsAreForCpusOnly) {
  const OnnxModel model = network_over(2, "InstanceNormalization");
  for (const bool expands : {false, true}) {
    BuildOptions options;
    options.lower.micro_batch = 2;
    options.expand_for_gpus = expands;
    const TrainingGraph training =
        build_training_graph(model, classify_tensors(model, {}), options);
    const auto count = [&](std::string_view op) {
      return std::ranges::count_if(training.graph.nodes,
                                   [&](const Node& node) { return node.op->name == op; });
    };
    EXPECT_EQ(count("GroupNorm"), !expands);
    EXPECT_EQ(count("LayerNorm"), expands);
  }
}

// Narrow groups and convolutions that make a region longer: one that reads single positions of a
// sequence, and a depthwise one.
TEST(Layout, WhichConvolutionsOfSequencesAreBlocked) {
  OnnxBuilder builder("sequence");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 32}, {"", 12}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
  std::string last = "x";
  const auto conv = [&](const std::string& name, std::int64_t kernel, std::int64_t group) {
    builder.initializer(name + ".w", numbers({32, 32 / group, kernel}, 3));
    const std::int64_t pad = kernel / 2;
    builder.node(
        "Conv", {last, name + ".w"}, {name},
        {OnnxAttribute::of_ints("pads", {pad, pad}), OnnxAttribute::of_int("group", group)}, name);
    last = name;
  };
  conv("first_point", 1, 1);
  conv("first_depthwise", 3, 32);
  conv("narrow", 3, 16);  // of 2 channels
  conv("groups", 3, 8);
  conv("point", 1, 1);
  conv("depthwise", 3, 32);
  builder.node("Flatten", {last}, {"flat"}, {}, "flat");
  builder.initializer("head.w", numbers({384, 5}, 7));
  builder.node("MatMul", {"flat", "head.w"}, {"logits"}, {}, "head");
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  const TrainingGraph training = build(model, Layout::kBlocked16);
  for (const Node& node : training.graph.nodes) {
    if (node.op->name != "Conv") continue;
    const bool blocked = node.name == "groups" || node.name == "point" || node.name == "depthwise";
    EXPECT_EQ(training.graph[node.outputs[0]].type.layout,
              blocked ? Layout::kBlocked16 : Layout::kRowMajor)
        << node.name;
  }
  const std::vector<HostTensor> plain = loss_and_gradients(build(model, Layout::kRowMajor));
  const std::vector<HostTensor> in_blocks = loss_and_gradients(training);
  for (std::size_t i = 0; i < plain.size(); ++i) test::expect_close(in_blocks[i], plain[i], 1e-4);
}

// The gradient of a Relu between row-major and blocked convolutions reads its result in blocks, as
// the second convolution does, which may lie in a later stage.
TEST(Layout, GradientsReadNoCopyOfALaterStage) {
  for (const bool is_output : {false, true}) {
    OnnxBuilder builder("sequence");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 16}, {"", 12}});
    builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
    if (is_output) builder.output("relu", DType::kFloat32, {{"batch", -1}, {"", 16}, {"", 12}});
    builder.initializer("point.w", numbers({16, 16, 1}, 1));
    builder.initializer("wide.w", numbers({16, 16, 3}, 2));
    builder.initializer("head.w", numbers({16 * 12, 5}, 3));
    builder.node("Conv", {"x", "point.w"}, {"point"}, {}, "point");
    builder.node("Relu", {"point"}, {"relu"}, {}, "relu");
    builder.node("Conv", {"relu", "wide.w"}, {"wide"}, {OnnxAttribute::of_ints("pads", {1, 1})},
                 "wide");
    builder.node("Flatten", {"wide"}, {"flat"}, {}, "flat");
    builder.node("MatMul", {"flat", "head.w"}, {"logits"}, {}, "head");
    const std::string bytes = builder.bytes();
    const TrainingGraph training =
        build(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}),
              Layout::kBlocked8);
    const auto gradient = std::ranges::find(training.graph.nodes, "ReluGrad",
                                            [](const Node& node) { return node.op->name; });
    ASSERT_NE(gradient, training.graph.nodes.end());
    for (const ValueId id : gradient->inputs)
      EXPECT_EQ(training.graph[id].type.layout, Layout::kBlocked8);
    EXPECT_NO_THROW(test::cut_everywhere(training)) << training.graph.to_text();
  }
}

// Channels 4 to 19 of a convolution's 32 are no whole blocks, 16 to 31 are.
TEST(Layout, SlicesInsideABlockStayRowMajor) {
  for (const std::int64_t first : {4, 16}) {
    OnnxBuilder builder("sliced");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 12}, {"", 12}});
    builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
    builder.initializer("stem.w", numbers({32, 3, 3, 3}, 1));
    builder.initializer("next.w", numbers({16, 16, 3, 3}, 2));
    builder.initializer("head.w", numbers({16 * 8 * 8, 5}, 3));
    const auto one = [&](const char* name, std::int64_t value) {
      builder.initializer(name, HostTensor::of<std::int64_t>({1}, std::span(&value, 1)));
    };
    one("first", first);
    one("last", first + 16);
    one("channels", 1);
    builder.node("Conv", {"x", "stem.w"}, {"stem"}, {}, "stem");
    builder.node("Slice", {"stem", "first", "last", "channels"}, {"part"}, {}, "part");
    builder.node("Conv", {"part", "next.w"}, {"next"}, {}, "next");
    builder.node("Flatten", {"next"}, {"flat"}, {}, "flat");
    builder.node("MatMul", {"flat", "head.w"}, {"logits"}, {}, "head");
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    expect_same_in_every_layout(model);
    const TrainingGraph training = build(model, Layout::kBlocked8);
    for (const Node& node : training.graph.nodes) {
      if (node.op->name != "Slice") continue;
      EXPECT_EQ(training.graph[node.outputs[0]].type.layout,
                first == 4 ? Layout::kRowMajor : Layout::kBlocked8);
    }
  }
}

// A convolution's 32 channels, split into whole blocks or not.
TEST(Layout, SplitsInsideABlockStayRowMajor) {
  for (const std::int64_t first : {12, 16}) {
    OnnxBuilder builder("split");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 12}, {"", 12}});
    builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 5}});
    builder.initializer("stem.w", numbers({32, 3, 3, 3}, 1));
    builder.initializer("next.w", numbers({16, first, 3, 3}, 2));
    builder.initializer("other.w", numbers({16, 32 - first, 3, 3}, 3));
    builder.initializer("head.w", numbers({16 * 8 * 8, 5}, 4));
    builder.initializer("sizes", HostTensor::of<std::int64_t>({2}, std::array{first, 32 - first}));
    builder.node("Conv", {"x", "stem.w"}, {"stem"}, {}, "stem");
    builder.node("Split", {"stem", "sizes"}, {"a", "b"}, {OnnxAttribute::of_int("axis", 1)},
                 "split");
    builder.node("Conv", {"a", "next.w"}, {"next"}, {}, "next");
    builder.node("Conv", {"b", "other.w"}, {"other"}, {}, "other");
    builder.node("Add", {"next", "other"}, {"sum"}, {}, "sum");
    builder.node("Flatten", {"sum"}, {"flat"}, {}, "flat");
    builder.node("MatMul", {"flat", "head.w"}, {"logits"}, {}, "head");
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    expect_same_in_every_layout(model);
    const TrainingGraph training = build(model, Layout::kBlocked8);
    for (const Node& node : training.graph.nodes) {
      if (node.op->name != "Split") continue;
      EXPECT_EQ(training.graph[node.outputs[1]].type.layout,
                first == 12 ? Layout::kRowMajor : Layout::kBlocked8);
    }
  }
}

}  // namespace
}  // namespace pipetrain
