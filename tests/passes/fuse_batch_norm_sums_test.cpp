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

/// A residual block whose shortcut is normalized, too, one whose shortcut is not, and one without a
/// Relu.
OnnxModel residual_network(std::int64_t channels = 16) {
  OnnxBuilder builder("residual");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", channels}, {"", 6}, {"", 5}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  std::uint64_t seed = 0;
  const auto normalized = [&](const std::string& from, const std::string& to) {
    builder.initializer(to + ".w",
                        random_tensor({DType::kFloat32, {channels, channels, 1, 1}}, ++seed));
    builder.node("Conv", {from, to + ".w"}, {to + ".c"}, {}, to + ".c");
    std::vector<std::string> inputs = {to + ".c"};
    for (const char* name : {".scale", ".bias", ".mean", ".variance"}) {
      builder.initializer(to + name, random_tensor({DType::kFloat32, {channels}}, ++seed, 0.5, 2));
      inputs.push_back(to + name);
    }
    builder.node("BatchNormalization", inputs, {to}, {}, to);
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
  builder.node("GlobalAveragePool", {"third"}, {"pooled"}, {}, "pooled");
  builder.node("Flatten", {"pooled"}, {"flat"}, {}, "flat");
  builder.initializer("v", random_tensor({DType::kFloat32, {channels, 3}}, ++seed));
  builder.node("MatMul", {"flat", "v"}, {"logits"}, {}, "last");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
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
