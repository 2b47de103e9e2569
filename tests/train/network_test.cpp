// What a network decides before it is measured.
#include "train/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

#include "base/cores.h"
#include "data/formats/image_rows.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/linearise.h"
#include "support/temporary_directory.h"
#include "train/pipeline_run.h"
#include "train/planned_network.h"
#include "train/predict.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

class ReplicatedNetwork : public testing::Test {
 protected:
  ReplicatedNetwork() {
    config_.model.path = (folder_.path() / "mlp.onnx").string();
    const ZooModel zoo = build_zoo_network(*find_zoo_network("mlp"), {.width = 512, .depth = 2});
    std::ofstream(config_.model.path, std::ios::binary) << zoo.onnx.bytes();
    config_.data.synthetic_samples = 64;
    config_.optimization.batch_size = 64;
    config_.pipeline.threads = 1;
    config_.pipeline.devices = 2;
    config_.pipeline.replicas = {2};
  }

  /// Nodes over packed weights, and those that compute for several micro-batches at once.
  std::pair<int, int> nodes(std::int64_t micro_batches, int accumulators = 0) {
    config_.pipeline.micro_batches = micro_batches;
    config_.pipeline.accumulators = accumulators;
    const Network network(config_);
    const std::vector<Node>& all = network.graph().graph.nodes;
    return {static_cast<int>(std::ranges::count_if(
                all, [](const Node& node) { return node.op->name == "PackMatrix"; })),
            static_cast<int>(std::ranges::count(all, Part::kBatchGradient, &Node::part))};
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

// What is prepared for several micro-batches of a step costs more than it saves for one.
TEST_F(ReplicatedNetwork, PreparesNothingForOneMicroBatch) {
  const auto [packed, batched] = nodes(4);
  EXPECT_GT(packed, 0);
  EXPECT_GT(batched, 0);
  EXPECT_EQ(nodes(2), (std::pair{0, 0}));
  // Bits then must not depend on the number of replicas.
  EXPECT_EQ(nodes(2, 2), (std::pair{packed, 0}));
  config_.pipeline.replicas = {1, 1};
  EXPECT_GT(nodes(2).first, 0);
}

// A few samples that are left over pay for no packed weights, but are fused as the others are.
TEST_F(ReplicatedNetwork, FusesTheRemainderAsTheOtherMicroBatches) {
  const ZooModel zoo = build_zoo_network(*find_zoo_network("bert"),
                                         {.width = 256, .depth = 1, .vocab = 64, .context = 16});
  std::ofstream(config_.model.path, std::ios::binary) << zoo.onnx.bytes();
  config_.optimization.batch_size = 33;
  config_.pipeline.micro_batch_size = 16;
  config_.pipeline.devices = 1;
  config_.pipeline.replicas = {};
  const Network network(config_);
  const auto remainder = network.graph_of(1, /*evaluation=*/false);
  const auto fused = [](const TrainingGraph& training) {
    return std::ranges::count_if(training.graph.nodes, [](const Node& node) {
      return node.part == Part::kForward && node.op->name == "Fused";
    });
  };
  EXPECT_FALSE(has_same_nodes(*remainder, network.graph()));
  EXPECT_GT(fused(network.graph()), 0);
  EXPECT_EQ(fused(*remainder), fused(network.graph()));
}

// All samples together are fewer than a batch, which is one micro-batch: their network is another.
TEST_F(ReplicatedNetwork, PredictsTheMemoryOfFewerSamplesThanABatch) {
  config_.pipeline.replicas = {};
  config_.pipeline.devices = 1;
  config_.pipeline.micro_batches = 1;
  config_.pipeline.profile_cache = false;
  config_.pipeline.pin = false;
  for (const std::size_t samples : {std::size_t{64}, std::size_t{40}}) {
    config_.data.synthetic_samples = samples;
    PlannedNetwork network = plan_network(config_);
    const PipelineRun run(network);
    EXPECT_GE(network.predicted_memory(0).total(), run.runtime().memory(0).total()) << samples;
  }
}

TEST_F(ReplicatedNetwork, ProgramsTakeTheEdgesOfOtherMicroBatches) {
  config_.pipeline.replicas = {};
  config_.pipeline.devices = 3;
  config_.pipeline.micro_batches = 2;
  config_.pipeline.profile_cache = false;
  config_.pipeline.pin = false;
  const PlannedNetwork network = plan_network(config_);
  const Program own = network.programs().training(2);
  const std::size_t known = own.edges.size();
  ASSERT_GT(known, 0U);
  const std::vector<Edge> more = {own.edges[0], {0, 2, 8}, {2, 0, 8, true}};
  const Program all = network.programs().training(2, more);
  ASSERT_EQ(all.edges.size(), known + 2);
  EXPECT_EQ(all.edges[known], more[1]);
  EXPECT_EQ(all.edges[known + 1], more[2]);
  EXPECT_EQ(all.transfers.size(), own.transfers.size() + 4);
}

// The simulation has the devices take turns, but not the threads of each, which are more than the
// cores.
TEST_F(ReplicatedNetwork, PredictedEventsTakeAsLongAsThePredictedStep) {
  config_.pipeline.replicas = {};
  config_.pipeline.threads = available_cores() + 1;
  config_.pipeline.micro_batches = 4;
  config_.pipeline.profile_cache = false;
  config_.pipeline.pin = false;
  const PlannedNetwork network = plan_network(config_);
  ASSERT_TRUE(network.shares_cores());
  const double step = network.predicted_step_seconds();
  EXPECT_NEAR(timeline_of(network.predicted_program(), network.predicted_events()).seconds, step,
              0.01 * step);
}

// The warm-up of pipedream with p devices is (p-1)/R mini-batches on each of the R replicas of the
// first stage: here 1, beside the one that is run backward.
TEST_F(ReplicatedNetwork, PredictsAFullPipelineOfAllReplicas) {
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.devices = 9;
  config_.pipeline.replicas = {8, 1};
  config_.pipeline.profile_cache = false;
  config_.pipeline.pin = false;
  EXPECT_EQ(RunSchedule(config_.pipeline).loads(1).front().in_flight, 2);
  const PlannedNetwork network = plan_network(config_);
  // At least 4 on each device.
  EXPECT_GE(network.predicted_program().micro_batches, 4 * 9);
  EXPECT_GT(network.prediction().micro_batch_period, 0);
  // 12 mini-batches are 4 turns of one stage and 3 of the other.
  config_.pipeline.devices = 7;
  config_.pipeline.replicas = {3, 4};
  EXPECT_GE(plan_network(config_).predicted_program().micro_batches, 4 * 12);
}

/// y = x w for samples of a free number of features, and an input for 3 samples that nothing reads.
void write_with_unread_input(const std::filesystem::path& path, const OnnxDim& features) {
  OnnxBuilder builder("unread");
  builder.input("old", DType::kFloat32, {{"", 3}, {"", 2}});
  builder.input("x", DType::kFloat32, {{"batch", -1}, features});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 2}});
  HostTensor w(TensorType{DType::kFloat32, {5, 2}});
  std::ranges::fill(w.span<float>(), 0.5F);
  builder.initializer("w", w);
  builder.node("MatMul", {"x", "w"}, {"y"}, {}, "product");
  builder.write(path);
}

TEST(NetworkInputs, ThatNothingReadsFixNoBatch) {
  const TemporaryDirectory folder;
  write_with_unread_input(folder / "m.onnx", {"", 5});
  RunConfig config;
  config.model.path = (folder / "m.onnx").string();
  config.data.synthetic_samples = 16;
  config.optimization.batch_size = 8;
  config.pipeline.threads = 1;
  config.pipeline.micro_batches = 2;
  const Network network(config);
  EXPECT_FALSE(network.model().has_fixed_batch());
  EXPECT_EQ(network.micro_batch(), 4);
}

TEST(NetworkInputs, ThatNothingReadsTakeNoArray) {
  const TemporaryDirectory folder;
  write_with_unread_input(folder / "m.onnx", {"features", -1});
  RawData raw;
  RawColumn column;
  column.name = "arr_0";
  column.values = HostTensor(TensorType{DType::kFloat32, {6, 5}});
  raw.train.columns = {column};
  EXPECT_EQ(shapes_of_samples(read_onnx(folder / "m.onnx"), raw),
            (std::map<std::string, Shape>{{"x", Shape{5}}}));
}

// The image is the array that --bind names, else the one that no other input takes by its name.
TEST(NetworkInputs, TakeShapesOfTheArraysThatAreBoundToThem) {
  const TemporaryDirectory folder;
  const OnnxDim batch{"batch", -1}, height{"height", -1}, width{"width", -1};
  OnnxBuilder builder("images");
  builder.input("image", DType::kFloat32, {batch, height, width});
  builder.input("meta", DType::kFloat32, {batch, width});
  builder.output("y", DType::kFloat32, {batch, height, width});
  builder.node("Add", {"image", "meta"}, {"y"}, {}, "sum");
  builder.write(folder / "m.onnx");
  const auto array = [](const std::string& name, const Shape& shape) {
    RawColumn column;
    column.name = name;
    column.values = HostTensor(TensorType{DType::kFloat32, shape});
    return column;
  };
  const std::map<std::string, Shape> wanted = {{"image", Shape{5, 4}}, {"meta", Shape{4}}};
  RawData raw;
  raw.train.columns = {array("meta", {6, 4}), array("pics", {6, 5, 4})};
  EXPECT_EQ(shapes_of_samples(read_onnx(folder / "m.onnx"), raw), wanted);
  raw.train.columns = {array("ids", {6, 4}), array("pics", {6, 5, 4})};
  const std::vector<std::pair<std::string, std::string>> bindings = {{"image", "pics"}};
  EXPECT_EQ(shapes_of_samples(read_onnx(folder / "m.onnx"), raw, {}, {}, bindings), wanted);
}

// Images that are 4 wide and 2 high; the model has three channels.
TEST(NetworkInputs, TakeTheSizeOfImages) {
  const TemporaryDirectory folder;
  std::ofstream(folder / "1.pgm", std::ios::binary) << "P5\n4 2\n255\n" << std::string(8, 'a');
  const std::vector<std::string> files = {(folder / "1.pgm").string()};
  RawData raw;
  RawColumn column;
  column.name = "x";
  column.source = make_image_rows(std::make_shared<ImageFiles>(files));
  raw.train.columns = {column};
  const OnnxDim batch{"batch", -1}, height{"height", -1}, width{"width", -1}, channels{"", 3};
  for (const std::string& name : {"x", "image"}) {  // the array's name or another one
    for (const bool last : {true, false}) {
      const std::vector<OnnxDim> dims = last ? std::vector{batch, height, width, channels}
                                             : std::vector{batch, channels, height, width};
      OnnxBuilder builder("images");
      builder.input(name, DType::kFloat32, dims);
      builder.output("y", DType::kFloat32, dims);
      builder.node("Relu", {name}, {"y"}, {}, "relu");
      builder.write(folder / "m.onnx");
      // An axis that the model fixes stays as it is.
      EXPECT_EQ(shapes_of_samples(read_onnx(folder / "m.onnx"), raw).at(name),
                last ? (Shape{2, 4, 3}) : (Shape{1, 2, 4}));
      // Those of a training go first.
      EXPECT_EQ(shapes_of_samples(read_onnx(folder / "m.onnx"), raw, {}, {{name, Shape{3, 8, 9}}})
                    .at(name),
                (Shape{3, 8, 9}));
    }
  }
}

}  // namespace
}  // namespace pipetrain
