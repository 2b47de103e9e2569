#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "partition/plan_file.h"
#include "passes/linearise.h"
#include "profile/estimate.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

HostTensor weight(Shape shape, float scale) {
  HostTensor out(TensorType{DType::kFloat32, shape});
  int next = 0;
  for (float& x : out.span<float>()) x = scale * static_cast<float>((++next * 37) % 23 - 11) / 11;
  return out;
}

/// Two layers for 6 inputs and 4 classes.
void write_mlp(const std::filesystem::path& path) {
  OnnxBuilder builder("mlp");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("l1.weight", weight({8, 6}, 0.5F));
  builder.initializer("l1.bias", weight({8}, 0.1F));
  builder.initializer("l2.weight", weight({4, 8}, 0.5F));
  builder.node("Gemm", {"x", "l1.weight", "l1.bias"}, {"h"}, {OnnxAttribute::of_int("transB", 1)},
               "l1");
  builder.node("Tanh", {"h"}, {"t"}, {}, "act");
  builder.node("Gemm", {"t", "l2.weight"}, {"logits"}, {OnnxAttribute::of_int("transB", 1)}, "l2");
  builder.write(path);
}

/// Four layers with activations between them.
void write_deep(const std::filesystem::path& path) {
  OnnxBuilder builder("deep");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 6}});
  std::string value = "x";
  for (int layer = 0; layer < 4; ++layer) {
    const std::string name = "l" + std::to_string(layer), next = layer < 3 ? name + ".t" : "logits";
    builder.initializer(name + ".weight", weight({6, 6}, 0.5F));
    builder.node("MatMul", {value, name + ".weight"}, {layer < 3 ? name + ".h" : next}, {}, name);
    if (layer < 3) builder.node("Tanh", {name + ".h"}, {next}, {}, name + ".act");
    value = next;
  }
  builder.write(path);
}

struct Recorder final : TrainingObserver {
  void on_step(const StepReport& report) override { losses.push_back(report.loss); }
  void on_evaluation(const EvaluationReport& report) override { evaluations.push_back(report); }
  std::vector<double> losses;
  std::vector<EvaluationReport> evaluations;
};

class Trainer : public testing::Test {
 protected:
  Trainer() {
    write_mlp(folder_.path() / "mlp.onnx");
    config_.model.path = (folder_.path() / "mlp.onnx").string();
    config_.data.synthetic_samples = 50;
    config_.pipeline.threads = 1;
    config_.pipeline.profile_cache = false;
    config_.optimization.batch_size = 16;
    config_.optimization.epochs = 2;
    config_.optimization.optimizer = default_settings(OptimizerKind::kSgd);
    config_.optimization.learning_rate.peak = 0.1;
  }

  Recorder run(const std::string& output = "") {
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network);
    Recorder recorder;
    train(run, recorder);
    if (!output.empty()) run.export_model((folder_.path() / output).string());
    return recorder;
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

TEST_F(Trainer, LossFallsAndEverySampleCounts) {
  config_.optimization.epochs = 20;
  const Recorder recorder = run();
  ASSERT_EQ(recorder.losses.size(), 80U);  // 50 samples: 16 + 16 + 16 + 2
  EXPECT_LT(recorder.losses.back(), 0.8 * recorder.losses.front());
}

TEST_F(Trainer, UtilisationIsOperationsBySecondsOverThePeak) {
  struct : TrainingObserver {
    void on_step(const StepReport& report) override { reports.push_back(report); }
    std::vector<StepReport> reports;
  } recorder;
  PlannedNetwork network = plan_network(config_);
  PipelineRun run(network);
  constexpr double kPeak = 1e9;
  TrainingOptions options;
  options.peak_flops = [] { return kPeak; };
  const TrainingSummary summary = train(run, recorder, options);
  // Of the products: forward and weight gradients of both layers, the second one's input gradient.
  // Biases, the Tanh and the loss add to that.
  constexpr double kProducts = 2 * (2 * 6 * 8 + 3 * 8 * 4);
  ASSERT_EQ(recorder.reports.size(), 8U);
  for (std::size_t i = 1; i < 8; ++i) {  // the peak is asked for behind the first step
    const StepReport& report = recorder.reports[i];
    ASSERT_TRUE(report.utilisation.has_value());
    const double operations = *report.utilisation * kPeak / report.samples_per_second;
    EXPECT_GE(operations, kProducts);
    EXPECT_LT(operations, 1.6 * kProducts);
  }
  const double operations = summary.steady_utilisation * kPeak * summary.steady_step_seconds / 16;
  EXPECT_GE(operations, kProducts);
  EXPECT_LT(operations, 1.6 * kProducts);
}

TEST_F(Trainer, UtilisationOfFewerSamplesThanABatchIsOfThese) {
  config_.data.synthetic_samples = 40;
  config_.optimization.batch_size = 64;
  config_.optimization.epochs = 8;
  PlannedNetwork network = plan_network(config_);
  EXPECT_FALSE(network.has_predicted_steps());
  PipelineRun run(network);
  constexpr double kPeak = 1e9;
  TrainingOptions options;
  options.peak_flops = [] { return kPeak; };
  Recorder recorder;
  const TrainingSummary summary = train(run, recorder, options);
  ASSERT_GT(summary.steady_step_seconds, 0);
  const double operations = summary.steady_utilisation * kPeak * summary.steady_step_seconds;
  EXPECT_NEAR(operations, 40 * flops_of_sample(network.graph()), 1e-6 * operations);
}

TEST_F(Trainer, MicroBatchesDoNotChangeTheLoss) {
  config_.pipeline.micro_batches = 1;
  const std::vector<double> whole = run().losses;
  for (const int count : {2, 3, 5, 16}) {  // 3 and 5 leave a short one
    config_.pipeline.micro_batches = count;
    const std::vector<double> parts = run().losses;
    ASSERT_EQ(parts.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i)
      EXPECT_NEAR(parts[i], whole[i], 2e-6 * whole[i]) << count;
  }
}

TEST_F(Trainer, ExportedBytesDoNotDependOnTheCut) {
  config_.pipeline.micro_batches = 3;
  run("one.onnx");
  for (const int stages : {2, 3, 4}) {
    for (const char* schedule : {"gpipe", "1f1b"}) {
      config_.pipeline.devices = stages;
      config_.pipeline.schedule = schedule;
      const std::string name = std::string(schedule) + std::to_string(stages) + ".onnx";
      run(name);
      EXPECT_TRUE(get_file(folder_.path() / name) == get_file(folder_.path() / "one.onnx")) << name;
    }
  }
  EXPECT_FALSE(get_file(folder_.path() / "one.onnx") == get_file(folder_.path() / "mlp.onnx"));
}

TEST_F(Trainer, ZeroStepsGiveTheIdenticalFile) {
  config_.optimization.max_steps = 0;
  run("same.onnx");
  EXPECT_TRUE(get_file(folder_.path() / "same.onnx") == get_file(folder_.path() / "mlp.onnx"));
}

TEST_F(Trainer, PipedreamStreamsEpochsAndDrainsForValidation) {
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.devices = 3;
  config_.data.validation_split = 0.2;
  config_.optimization.epochs = 3;
  const Recorder recorder = run();
  EXPECT_EQ(recorder.losses.size(), 9U);  // 40 samples: 16 + 16 + 8
  ASSERT_EQ(recorder.evaluations.size(), 3U);
  EXPECT_EQ(recorder.evaluations[2].samples, 10);
  for (const double loss : recorder.losses) EXPECT_TRUE(std::isfinite(loss));
}

// Each stage holds data of several mini-batches, which a shorter round before does not tell.
TEST_F(Trainer, StreamsOfManyStagesEndWithAShorterRound) {
  config_.model.path = (folder_.path() / "deep.onnx").string();
  write_deep(config_.model.path);
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.devices = 4;
  config_.pipeline.timeout_seconds = 5;
  config_.data.synthetic_samples = 16 * 12;
  for (const std::int64_t more : {1, 0}) {
    config_.optimization.max_steps = 12 + more;
    config_.pipeline.recompute = more > 0 ? Recompute::kNone : Recompute::kAll;
    const Recorder recorder = run();
    EXPECT_EQ(recorder.losses.size(), static_cast<std::size_t>(config_.optimization.max_steps));
  }
}

/// Branches of two layers between a stem and a sum, the widths of which differ.
void write_branches(const std::filesystem::path& path) {
  OnnxBuilder builder("branches");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("stem.weight", weight({6, 8}, 0.5F));
  builder.node("MatMul", {"x", "stem.weight"}, {"stem"}, {}, "stem");
  std::vector<std::string> ends;
  for (const std::int64_t width : {24, 16, 24, 16, 16}) {
    const std::string name = "b" + std::to_string(ends.size());
    builder.initializer(name + ".in", weight({8, width}, 0.4F));
    builder.initializer(name + ".out", weight({width, 4}, 0.3F));
    builder.node("MatMul", {"stem", name + ".in"}, {name + ".h"}, {}, name + ".in");
    builder.node("Tanh", {name + ".h"}, {name + ".t"}, {}, name + ".act");
    builder.node("MatMul", {name + ".t", name + ".out"}, {name + ".y"}, {}, name + ".out");
    ends.push_back(name + ".y");
  }
  builder.node("Sum", ends, {"logits"}, {}, "sum");
  builder.write(path);
}

/// The order in which of the nodes that can come next always the last one in the file does.
std::vector<int> last_first_order(const TrainingGraph& graph) {
  std::vector<int> numbers(linearise(graph).order.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::vector<std::vector<int>> inputs = inputs_of(graph, chain_in_order(graph, numbers));
  std::vector<int> order;
  std::vector<bool> placed(inputs.size(), false);
  while (order.size() < inputs.size()) {
    int next = static_cast<int>(inputs.size()) - 1;
    const auto waits = [&](int node) {
      const auto& needs = inputs[static_cast<std::size_t>(node)];
      return placed[static_cast<std::size_t>(node)] ||
             !std::all_of(needs.begin(), needs.end(),
                          [&](int i) { return bool(placed[static_cast<std::size_t>(i)]); });
    };
    while (waits(next)) --next;
    placed[static_cast<std::size_t>(next)] = true;
    order.push_back(next);
  }
  return order;
}

TEST_F(Trainer, TheOrderThatIsCutChangesNoBitAndIsKeptInThePlan) {
  const std::filesystem::path model = folder_.path() / "branches.onnx", plan = folder_.path() / "p";
  write_branches(model);
  config_.model.path = model.string();
  config_.pipeline.micro_batches = 4;
  config_.optimization.epochs = 1;
  run("one.onnx");
  config_.pipeline.devices = 3;
  std::vector<int> order;
  {
    const ProfiledNetwork network{Network(config_)};
    const std::filesystem::path profile = folder_.path() / "profile.json";
    write_profile(profile, network.profile(), network.graph(), "branches");
    config_.pipeline.profile_path = profile.string();  // once is enough
    order = last_first_order(network.graph());
  }
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    config_.pipeline.schedule = schedule;
    config_.pipeline.order = order;
    run("other.onnx");
    EXPECT_TRUE(get_file(folder_.path() / "other.onnx") == get_file(folder_.path() / "one.onnx"))
        << schedule;
    // Whatever order is found by itself.
    config_.pipeline.order.clear();
    run("found.onnx");
    EXPECT_TRUE(get_file(folder_.path() / "found.onnx") == get_file(folder_.path() / "one.onnx"))
        << schedule;
  }
  // A plan says it, and is followed.
  config_.pipeline.order = order;
  std::vector<int> cuts;
  std::string text;
  {
    PlannedNetwork network = plan_network(config_);
    EXPECT_EQ(network.order(), order);
    cuts = network.plan().cuts();
    text = plan_text(network.plan(), network.costs(), network.plan_request(), "branches",
                     network.order());
  }
  const auto follow = [&](const std::string& written) {
    std::ofstream(plan) << written;
    config_.pipeline.order.clear();
    config_.pipeline.plan_path = plan.string();
    PlannedNetwork network = plan_network(config_);
    EXPECT_EQ(network.order(), order);
    EXPECT_EQ(network.plan().cuts(), cuts);
  };
  follow(text);
  run("plan.onnx");
  EXPECT_TRUE(get_file(folder_.path() / "plan.onnx") == get_file(folder_.path() / "one.onnx"));
  const std::size_t begin = text.find("\"order\": \"") + 10;
  const std::size_t end = text.find('"', begin);
  for (const char* wrong : {"1 0 2-17", "0-3", "0-99", "0-2 2-17"}) {
    try {
      follow(text.substr(0, begin) + wrong + text.substr(end));
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
      EXPECT_NE(std::string(error.what()).find("order"), std::string::npos) << error.what();
    }
  }
}

TEST_F(Trainer, StopsWhenTheLossIsNotFinite) {
  config_.model.loss.loss = "mse";
  config_.optimization.learning_rate.peak = 1e18;
  config_.optimization.epochs = 50;
  try {
    run();
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
    EXPECT_NE(error.message().find("not finite at step"), std::string::npos);
    EXPECT_NE(error.message().find(" in step "), std::string::npos) << error.message();
  }
}

TEST_F(Trainer, RefusesWhatCannotBe) {
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.devices = 2;
  config_.optimization.clip_norm = 1;
  EXPECT_THROW(run(), Error);
  config_.optimization.clip_norm = 0;
  config_.pipeline.micro_batches = 4;
  EXPECT_THROW(run(), Error);
  config_.pipeline.schedule = "1f1b";
  config_.pipeline.micro_batch_size = 4;
  EXPECT_THROW(run(), Error);
}

}  // namespace
}  // namespace pipetrain
