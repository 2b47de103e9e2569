// Estimates against counts made by hand.
#include "profile/estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "graph/op.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/linearise.h"
#include "profile/node_key.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

OnnxModel read(const OnnxBuilder& builder) {
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph build(const OnnxModel& model, std::int64_t samples) {
  BuildOptions options;
  options.lower.micro_batch = samples;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

constexpr std::int64_t kRows = 6, kIn = 40, kHidden = 50, kOut = 7;

// x (6, 40) -> MatMul w1 (40, 50) -> Tanh -> MatMul w2 (50, 7) -> cross-entropy
TrainingGraph two_layers() {
  OnnxBuilder builder("mlp");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", kIn}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", kOut}});
  builder.initializer("w1", HostTensor({DType::kFloat32, {kIn, kHidden}}));
  builder.initializer("w2", HostTensor({DType::kFloat32, {kHidden, kOut}}));
  builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "first");
  builder.node("Tanh", {"h"}, {"t"}, {}, "act");
  builder.node("MatMul", {"t", "w2"}, {"logits"}, {}, "second");
  return build(read(builder), kRows);
}

TrainingGraph decoder(std::int64_t layers, std::int64_t width, std::int64_t vocab,
                      std::int64_t context, std::int64_t samples) {
  const ZooModel model = build_zoo_network(
      *find_zoo_network("gpt"),
      {.width = width, .depth = layers, .heads = 2, .vocab = vocab, .context = context});
  return build(read(model.onnx), samples);
}

double matmul_seconds(const TrainingGraph& training, const Profile& profile, Part part) {
  double sum = 0;
  for (std::size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const Node& node = training.graph.nodes[n];
    const std::string_view op = node.op->name;
    if (node.part == part && (op == "MatMul" || op == "Attention" || op == "AttentionGrad"))
      sum += profile.node_seconds[n];
  }
  return sum;
}

TEST(Estimate, ALinearLayerTakesTwoOperationsPerWeightAndRow) {
  const TrainingGraph training = two_layers();
  // One operation a second, memory at no cost: seconds are operations.
  const Profile profile = estimate_profile(training, {"", 1, kInfinity, 0});
  const double first = 2.0 * kRows * kIn * kHidden;
  const double second = 2.0 * kRows * kHidden * kOut;
  EXPECT_DOUBLE_EQ(matmul_seconds(training, profile, Part::kForward), first + second);
  EXPECT_DOUBLE_EQ(matmul_seconds(training, profile, Part::kInputGradient),
                   second);  // x needs none
  EXPECT_DOUBLE_EQ(matmul_seconds(training, profile, Part::kWeightGradient), first + second);
}

TEST(Estimate, ALinearLayerMovesEveryOperandOnce) {
  const TrainingGraph training = two_layers();
  const Profile profile = estimate_profile(training, {"", kInfinity, 1, 0});
  const double first = 4.0 * (kRows * kIn + kIn * kHidden + kRows * kHidden);
  const double second = 4.0 * (kRows * kHidden + kHidden * kOut + kRows * kOut);
  EXPECT_DOUBLE_EQ(matmul_seconds(training, profile, Part::kForward), first + second);
  EXPECT_DOUBLE_EQ(profile.accumulate_seconds_per_byte, 3);
}

TEST(Estimate, TheLongerOfArithmeticAndTrafficCountsAfterTheLaunch) {
  const TrainingGraph training = two_layers();
  const std::vector<bool> is_read = values_read(training);
  const DeviceSpeed device{"", 100, 30, 0.25};
  const Profile profile = estimate_profile(training, device);
  for (std::size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const Node& node = training.graph.nodes[n];
    const double expected = node.op->flags & kView
                                ? 0
                                : 0.25 + std::max(node_flops(training.graph, node) / 100,
                                                  node_bytes(training.graph, node, is_read) / 30);
    EXPECT_DOUBLE_EQ(profile.node_seconds[n], expected) << node.name;
  }
}

TEST(Estimate, ASelectionReadsWhatItSelects) {
  const TrainingGraph training = decoder(1, 32, /*vocab=*/5000, /*context=*/8, /*samples=*/2);
  const std::vector<bool> is_read = values_read(training);
  int gathers = 0;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name != "Gather") continue;
    ++gathers;
    // 16 rows of 32 floats read and written, 16 indices of 8 bytes; not the table of 5000 rows.
    EXPECT_DOUBLE_EQ(node_bytes(training.graph, node, is_read), 2 * 16 * 32 * 4 + 16 * 8);
  }
  EXPECT_EQ(gathers, 1);
}

// Kaplan et al. 2020, table 1: 2 operations per weight of a product and token, and 4 T C per layer
// and token for attention over T positions, of which a causal one sees (T + 1) / 2 on average.
// Backward is twice that, and attention's shares are computed again: five products for two.
TEST(Estimate, ADecoderTakesTwoOperationsPerParameterAndToken) {
  const std::int64_t layers = 3, width = 64, vocab = 300, context = 32, samples = 2;
  const TrainingGraph training = decoder(layers, width, vocab, context, samples);
  const Profile profile = estimate_profile(training, {"", 1, kInfinity, 0});
  const auto tokens = static_cast<double>(samples * context);
  const auto weights = static_cast<double>(layers * 12 * width * width + vocab * width);
  const double attention = static_cast<double>(layers * 2 * (context + 1) * width) * tokens;
  const double forward = 2 * weights * tokens + attention;
  EXPECT_DOUBLE_EQ(matmul_seconds(training, profile, Part::kForward), forward);
  EXPECT_DOUBLE_EQ(matmul_seconds(training, profile, Part::kInputGradient) +
                       matmul_seconds(training, profile, Part::kWeightGradient),
                   4 * weights * tokens + 2.5 * attention);
  // What is not a product is little of it, even in a narrow network.
  double all = 0;
  for (std::size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (training.graph.nodes[n].part == Part::kForward) all += profile.node_seconds[n];
  }
  EXPECT_GT(all, forward);
  EXPECT_LT(all, 1.25 * forward);
}

TEST(Estimate, FasterDevicesAndSmallerBatchesTakeLess) {
  const DeviceSpeed device{"", 1e12, 1e11, 1e-6};
  const TrainingGraph training = two_layers();
  const double seconds = estimate_profile(training, device).total_seconds(training);
  for (const DeviceSpeed& faster :
       {DeviceSpeed{"", 2e12, 2e11, 1e-6}, DeviceSpeed{"", 1e12, 1e11, 0}}) {
    EXPECT_LT(estimate_profile(training, faster).total_seconds(training), seconds);
  }
  const TrainingGraph one = decoder(1, 32, 50, 8, 1), four = decoder(1, 32, 50, 8, 4);
  const double small = estimate_profile(one, device).total_seconds(one);
  const double large = estimate_profile(four, device).total_seconds(four);
  EXPECT_LT(small, large);
  EXPECT_LT(large, 4 * small);  // weights are read once, kernels launched once
}

TEST(Estimate, AnUpdateMovesTheStateOfTheOptimizer) {
  const TrainingGraph training = two_layers();
  std::size_t bytes = 0;
  for (const Parameter& parameter : training.parameters)
    bytes += training.graph[parameter.value].type.bytes();
  const auto seconds_of_step = [&](int slots) {
    Profile profile = estimate_profile(training, {"a device", 1e9, 1e9, 1e-6}, slots);
    EXPECT_NEAR(profile.update_seconds_per_byte, (3 + 2 * slots) * 1e-9, 1e-15);
    double seconds = 0;
    for (const ChainCost& element : chain_costs(training, linearise(training), profile).elements)
      seconds += element.step_seconds;
    return seconds;
  };
  EXPECT_NEAR(seconds_of_step(2) - seconds_of_step(0), 4e-9 * static_cast<double>(bytes), 1e-12);
}

TEST(Estimate, FillsTheCostsOfTheChain) {
  const TrainingGraph training = two_layers();
  const Chain chain = linearise(training);
  const Profile profile = estimate_profile(training, {"a device", 1e9, 1e9, 1e-6});
  EXPECT_EQ(profile.device, "a device");
  const ChainCosts costs = chain_costs(training, chain, profile);
  double sum = 0, accumulated = 0;
  for (const ChainCost& element : costs.elements) {
    EXPECT_GT(element.forward_seconds, 0) << element.name;
    sum +=
        element.forward_seconds + element.input_gradient_seconds + element.weight_gradient_seconds;
  }
  for (const Accumulation& accumulation : training.accumulations) {
    accumulated +=
        3e-9 * static_cast<double>(training.graph[accumulation.contribution].type.bytes());
  }
  EXPECT_NEAR(sum, profile.total_seconds(training) + accumulated, 1e-12);
}

TEST(Estimate, NeedsTheSpeedOfTheDevice) {
  const TrainingGraph training = two_layers();
  for (const DeviceSpeed& unknown : {DeviceSpeed{"", 0, 1, 0}, DeviceSpeed{"", 1, 0, 0}}) {
    try {
      estimate_profile(training, unknown);
      ADD_FAILURE() << "a speed of 0 was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
  }
}

TEST(UsefulThreads, OfSmallKernelsIsOne) {
  EXPECT_EQ(useful_threads(two_layers(), 16), 1);
  EXPECT_EQ(useful_threads(two_layers(), 1), 1);
}

// A step of both takes 3 ms, of two threads 3.5 and 1.9 ms: most convolutions of the first are over
// 4 x 4 numbers.
TEST(UsefulThreads, OfConvolutionsDependOnTheirSizes) {
  const OnnxModel digits = read_onnx(PIPETRAIN_SOURCE_DIR "/models/digits-cnn.onnx");
  EXPECT_EQ(useful_threads(build(digits, 50), 2), 1);
  const ZooModel lenet = build_zoo_network(*find_zoo_network("lenet"), {});
  EXPECT_EQ(useful_threads(build(read(lenet.onnx), 64), 2), 2);
}

TEST(UsefulThreads, OfLargeKernelsIsAll) {
  EXPECT_EQ(useful_threads(decoder(2, 1024, 1000, 256, 4), 2), 2);
  EXPECT_GT(useful_threads(decoder(2, 1024, 1000, 256, 4), 16), 8);
}

TEST(UsefulThreads, GrowsWithTheKernels) {
  int before = 1;
  for (const std::int64_t width : {16, 64, 256, 1024}) {
    const int threads = useful_threads(decoder(1, width, 100, 64, 4), 64);
    EXPECT_GE(threads, before) << width;
    before = threads;
  }
  EXPECT_GT(before, 1);
}

}  // namespace
}  // namespace pipetrain
