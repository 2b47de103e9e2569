#include "passes/fuse_batch_norm_sums.h"

#include <gtest/gtest.h>

#include "graph/op.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "support/op_check.h"

namespace pipetrain {
namespace {

using test::random_tensor;

/// Adds a convolution of 1×1 and its BatchNormalization, whose result is named `to`.
void add_normalized(OnnxBuilder& builder, std::int64_t channels, const std::string& from,
                    const std::string& to) {
  std::uint64_t seed = 10 * static_cast<std::uint64_t>(to[0]);
  builder.initializer(to + ".w",
                      random_tensor({DType::kFloat32, {channels, channels, 1, 1}}, ++seed));
  builder.node("Conv", {from, to + ".w"}, {to + ".c"}, {}, to + ".c");
  std::vector<std::string> inputs = {to + ".c"};
  for (const char* name : {".scale", ".bias", ".mean", ".variance"}) {
    builder.initializer(to + name, random_tensor({DType::kFloat32, {channels}}, ++seed, 0.5, 2));
    inputs.push_back(to + name);
  }
  builder.node("BatchNormalization", inputs, {to}, {}, to);
}

OnnxBuilder begun(std::int64_t channels) {
  OnnxBuilder builder("residual");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", channels}, {"", 6}, {"", 5}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  return builder;
}

OnnxModel with_head(OnnxBuilder& builder, std::int64_t channels, const std::string& features) {
  builder.node("GlobalAveragePool", {features}, {"pooled"}, {}, "pooled");
  builder.node("Flatten", {"pooled"}, {"flat"}, {}, "flat");
  builder.initializer("v", random_tensor({DType::kFloat32, {channels, 3}}, 1));
  builder.node("MatMul", {"flat", "v"}, {"logits"}, {}, "last");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

/// A residual block whose shortcut is normalized, too, one whose shortcut is not, and one without a
/// Relu.
OnnxModel residual_network(std::int64_t channels = 16) {
  OnnxBuilder builder = begun(channels);
  const auto normalized = [&](const std::string& from, const std::string& to) {
    add_normalized(builder, channels, from, to);
  };
  normalized("x", "a");
  normalized("x", "b");
  builder.node("Add", {"a", "b"}, {"ab"}, {}, "ab");
  builder.node("Relu", {"ab"}, {"first"}, {}, "first");
  normalized("first", "c");
  builder.node("Add", {"first", "c"}, {"cs"}, {}, "cs");
  builder.node("Relu", {"cs"}, {"second"}, {}, "second");
  normalized("second", "d");
  builder.node("Add", {"d", "second"}, {"third"}, {}, "third");
  return with_head(builder, channels, "third");
}

TrainingGraph built(const OnnxModel& model, FusionTarget fusion,
                    Layout layout = Layout::kRowMajor) {
  BuildOptions options;
  options.lower.micro_batch = 6;
  options.fusion = fusion;
  options.feature_map_layout = layout;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

std::vector<HostTensor> run_all(const TrainingGraph& training) {
  test::Feeds feeds;
  const TensorType& x = training.graph[training.inputs[0].value].type;
  feeds[training.inputs[0].value] = random_tensor(x, 11);
  feeds[training.loss.label] = random_tensor(training.graph[training.loss.label].type, 12, 0, 3);
  feeds[training.loss.loss_scale] = test::floats(Shape{}, {0.25F});
  for (const Accumulation& use : training.accumulations)
    feeds[use.accumulator] = HostTensor(training.graph[use.accumulator].type);
  return test::run_graph(training.graph, Backend::kCpu, feeds);
}

int nodes_of(const TrainingGraph& training, std::string_view op) {
  int found = 0;
  for (const Node& node : training.graph.nodes) found += node.op->name == op;
  return found;
}

TEST(FuseBatchNormSums, ChangesNoBitOfLossAndGradients) {
  const OnnxModel model = residual_network();
  const TrainingGraph alone = built(model, FusionTarget::kNone);
  const TrainingGraph fused = built(model, FusionTarget::kCpu);
  EXPECT_EQ(nodes_of(alone, "Add"), 3);
  EXPECT_EQ(nodes_of(fused, "Add"), 0) << fused.graph.to_text();
  EXPECT_EQ(nodes_of(fused, "Relu"), 0) << fused.graph.to_text();
  int sums = 0, rectified = 0;
  for (const Node& node : fused.graph.nodes) {
    if (node.op->name != "BatchNorm") continue;
    sums += node.inputs.size() == 4;
    rectified += node.attributes.flag("clip_open");
  }
  EXPECT_EQ(sums, 3) << fused.graph.to_text();
  EXPECT_EQ(rectified, 2) << fused.graph.to_text();
  const auto expected = run_all(alone), actual = run_all(fused);
  const auto same = [&](ValueId id) {
    test::expect_same_bits(actual[static_cast<std::size_t>(id.index)],
                           expected[static_cast<std::size_t>(id.index)]);
  };
  same(fused.loss.loss_sum);
  for (const Accumulation& use : fused.accumulations) same(use.contribution);
}

// y = x + LeakyRelu(BatchNorm(Conv(x))): the sum is taken behind the activation.
TEST(FuseBatchNormSums, AnActivationStaysBeforeTheSum) {
  OnnxBuilder builder = begun(16);
  add_normalized(builder, 16, "x", "a");
  builder.node("LeakyRelu", {"a"}, {"activated"}, {}, "activated");
  builder.node("Add", {"x", "activated"}, {"sum"}, {}, "sum");
  const OnnxModel model = with_head(builder, 16, "sum");
  const TrainingGraph fused = built(model, FusionTarget::kCpu, Layout::kBlocked16);
  EXPECT_EQ(nodes_of(fused, "LeakyRelu"), 0) << fused.graph.to_text();
  EXPECT_EQ(nodes_of(fused, "Add"), 1) << fused.graph.to_text();
  const auto expected = run_all(built(model, FusionTarget::kNone)), actual = run_all(fused);
  const auto id = static_cast<std::size_t>(fused.loss.loss_sum.index);
  test::expect_close(actual[id], expected[id], 1e-5);
}

TEST(FuseBatchNormSums, GpusAddWithChannelsLastOnly) {
  const auto sums = [](const OnnxModel& model, Layout layout) {
    const TrainingGraph fused = built(model, FusionTarget::kGpu, layout);
    int found = 0;
    for (const Node& node : fused.graph.nodes) {
      if (node.op->name != "BatchNorm" || node.inputs.size() == 3) continue;
      ++found;
      EXPECT_EQ(fused.graph[node.inputs[3]].type.layout, Layout::kChannelsLast);
      EXPECT_EQ(fused.graph[node.outputs[0]].type.layout, Layout::kChannelsLast);
    }
    return found;
  };
  EXPECT_EQ(sums(residual_network(), Layout::kChannelsLast), 3);
  EXPECT_EQ(sums(residual_network(), Layout::kRowMajor), 0);
  EXPECT_EQ(sums(residual_network(12), Layout::kChannelsLast), 0);
}

}  // namespace
}  // namespace pipetrain
