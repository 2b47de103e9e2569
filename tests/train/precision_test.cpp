// Training in mixed precision: the same bits for every cut, float weights in files and checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "support/temporary_directory.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

struct Losses final : TrainingObserver {
  void on_step(const StepReport& report) override {
    losses.push_back(report.loss);
    skips.push_back(report.skipped);
    scale = report.loss_scale.value_or(0);
  }
  std::vector<double> losses;
  std::vector<bool> skips;
  double scale = 0;  // of the last step
};

/// Trains and, unless `output` is empty, writes the model.
Losses train_whole(const RunConfig& config, const std::string& output) {
  PlannedNetwork network = plan_network(config);
  PipelineRun run(network);
  Losses recorder;
  train(run, recorder);
  if (!output.empty()) run.export_model(output);
  return recorder;
}

class MixedPrecision : public testing::Test {
 protected:
  MixedPrecision() {
    config_.model.path = PIPETRAIN_SOURCE_DIR "/models/digits-cnn.onnx";
    config_.model.precision = DType::kBFloat16;
    config_.data.synthetic_samples = 50;
    config_.pipeline.threads = 1;
    config_.pipeline.profile_cache = false;
    config_.optimization.batch_size = 16;
    config_.optimization.max_steps = 4;
  }

  std::vector<double> run(const std::string& output) {
    return train_whole(config_, (folder_.path() / output).string()).losses;
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

TEST_F(MixedPrecision, BitsDoNotDependOnTheCut) {
  config_.pipeline.micro_batches = 3;
  const std::vector<double> losses = run("one.onnx");
  for (const auto& [stages, schedule] : {std::pair(2, "1f1b"), std::pair(4, "zb-h1")}) {
    config_.pipeline.devices = stages;
    config_.pipeline.schedule = schedule;
    EXPECT_EQ(run("other.onnx"), losses) << schedule;
    EXPECT_TRUE(get_file(folder_.path() / "other.onnx") == get_file(folder_.path() / "one.onnx"))
        << schedule;
  }
}

TEST_F(MixedPrecision, FollowsFloatAndKeepsFloatWeights) {
  const std::vector<double> mixed = run("mixed.onnx");
  config_.model.precision = DType::kFloat32;
  const std::vector<double> whole = run("float.onnx");
  EXPECT_NE(mixed, whole);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(mixed[i], whole[i], 0.02 * whole[i]);
  // Weights have more than the 8 bits of a bfloat16, so updates too small for those are not lost.
  const OnnxModel model = read_onnx((folder_.path() / "mixed.onnx").string());
  int finer = 0;
  for (const OnnxInitializer& tensor : model.initializers) {
    if (tensor.value.dtype() != DType::kFloat32) continue;
    for (const float x : tensor.value.span<float>())
      finer += bfloat16_to_float(float_to_bfloat16(x)) != x;
  }
  EXPECT_GT(finer, 30000);
}

/// Numbers in [-scale, scale] that a line of Python makes as well.
HostTensor simple_weight(Shape shape, float scale) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int next = 0;
  for (float& x : out.span<float>()) x = scale * static_cast<float>((++next * 37) % 23 - 11) / 11;
  return out;
}

/// Training in float16 of three layers for 6 inputs and 4 classes.
class Float16 : public testing::Test {
 protected:
  Float16() {
    OnnxBuilder builder("layers");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
    builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
    const auto layer = [&](const std::string& name, std::int64_t from, std::int64_t to, float scale,
                           const std::string& in, const std::string& out) {
      builder.initializer(name + ".weight", simple_weight({to, from}, scale));
      builder.initializer(name + ".bias", simple_weight({to}, 0.1F));
      builder.node("Gemm", {in, name + ".weight", name + ".bias"}, {out},
                   {OnnxAttribute::of_int("transB", 1)}, name);
    };
    layer("l1", 6, 16, 0.5F, "x", "h1");
    builder.node("Tanh", {"h1"}, {"t1"}, {}, "act1");
    layer("l2", 16, 16, 0.4F, "t1", "h2");
    builder.node("Relu", {"h2"}, {"t2"}, {}, "act2");
    layer("l3", 16, 4, 0.5F, "t2", "logits");
    builder.write(folder_ / "net.onnx");
    std::ofstream data(folder_ / "data.csv");
    data << "a,b,c,d,e,f,label\n";
    for (int i = 0; i < 24; ++i) {
      for (int j = 0; j < 6; ++j) data << ((i * 7 + j * 5 + i * j) % 13 - 6) / 4.0 << ",";
      data << (i % 3 ? (i * i + 3 * i) % 4 : i % 4) << "\n";
    }
    config_.model.path = (folder_ / "net.onnx").string();
    config_.model.precision = DType::kFloat16;
    config_.data.path = (folder_ / "data.csv").string();
    config_.pipeline.threads = 1;
    config_.pipeline.profile_cache = false;
    config_.optimization.shuffle = false;
    config_.optimization.batch_size = 8;
    config_.optimization.epochs = 15;
    config_.optimization.optimizer = default_settings(OptimizerKind::kSgd);
    config_.optimization.learning_rate.peak = 0.05;
    config_.optimization.learning_rate.kind = LearningRateKind::kConstant;
  }

  Losses run(const std::string& output = "") {
    return train_whole(config_, output.empty() ? output : (folder_ / output).string());
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

// PyTorch's losses in float32: the same network, data and order, SGD with momentum 0.9.
TEST_F(Float16, FollowsPyTorchsFloats) {
  const std::pair<std::size_t, double> expected[] = {
      {0, 1.3964643},  {1, 1.2952453},  {2, 1.4029993},  {5, 1.2210991}, {10, 0.8127104},
      {20, 0.7862923}, {30, 0.5773693}, {37, 0.3918046}, {44, 0.6406907}};
  for (const double scale : {0.0, 1024.0}) {  // 0: it adapts
    config_.optimization.loss_scale = scale;
    const Losses run = this->run();
    ASSERT_EQ(run.losses.size(), 45U);
    EXPECT_EQ(std::count(run.skips.begin(), run.skips.end(), true), 0);
    for (const auto& [step, loss] : expected) EXPECT_NEAR(run.losses[step], loss, 0.005 * loss);
    EXPECT_EQ(run.scale, scale > 0 ? 0 : 65536);
  }
}

// A batch of one sample: gradients of the logits of up to 65536 times 1 are too large behind the
// next product. Steps are left out until the scale fits, and the network learns.
TEST_F(Float16, LeavesOutStepsThatOverflowAndRecovers) {
  config_.optimization.batch_size = 1;
  config_.optimization.learning_rate.peak = 0.01;
  const Losses one = run("one.onnx");
  const auto skipped = std::count(one.skips.begin(), one.skips.end(), true);
  EXPECT_GE(skipped, 1);
  EXPECT_LT(skipped, 6);
  EXPECT_FALSE(one.skips.back());
  EXPECT_EQ(one.scale, 65536 / std::exp2(skipped));
  EXPECT_TRUE(std::all_of(one.losses.begin(), one.losses.end(), [](double x) { return x > 0; }));
  const auto mean_of = [&](auto first, auto last) {
    return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
  };
  EXPECT_LT(mean_of(one.losses.end() - 24, one.losses.end()),
            0.7 * mean_of(one.losses.begin(), one.losses.begin() + 24));
  // The same steps and bits on more stages.
  for (const auto& [stages, schedule] :
       {std::pair(2, "gpipe"), std::pair(3, "zb-h1"), std::pair(4, "1f1b")}) {
    config_.pipeline.devices = stages;
    config_.pipeline.schedule = schedule;
    const Losses other = run("other.onnx");
    EXPECT_EQ(other.losses, one.losses) << schedule;
    EXPECT_EQ(other.skips, one.skips) << schedule;
    EXPECT_TRUE(get_file(folder_ / "other.onnx") == get_file(folder_ / "one.onnx")) << schedule;
  }
}

// The first update makes weights infinite in float16: no scale helps, which is said when the least
// one, reached after 16 halvings, does not.
TEST_F(Float16, EndsWhereNoScaleHelps) {
  config_.optimization.learning_rate.peak = 1e7;
  try {
    run();
    FAIL() << "nothing was noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
    EXPECT_NE(error.message().find("at step 18 in float16, even with a loss scale of 1"),
              std::string::npos)
        << error.message();
  }
}

// In float32 the same happens to weights of 1e29: what then is done is the user's choice.
TEST_F(Float16, FloatsThatOverflowAreSkippedOnRequest) {
  config_.model.precision = DType::kFloat32;
  config_.optimization.learning_rate.peak = 1e30;
  EXPECT_THROW(run(), Error);
  for (const int stages : {1, 2}) {
    config_.pipeline.devices = stages;
    config_.optimization.on_nonfinite = OnNonfinite::kSkip;
    const Losses skipping = run("skipping.onnx");
    EXPECT_EQ(std::count(skipping.skips.begin(), skipping.skips.end(), true), 44) << stages;
    EXPECT_FALSE(skipping.skips.front());
    config_.optimization.on_nonfinite = OnNonfinite::kIgnore;
    const Losses ignoring = run("ignoring.onnx");
    EXPECT_EQ(std::count(ignoring.skips.begin(), ignoring.skips.end(), true), 0);
    EXPECT_FALSE(get_file(folder_ / "skipping.onnx") == get_file(folder_ / "ignoring.onnx"));
  }
  config_.pipeline.schedule = "pipedream";
  config_.optimization.on_nonfinite = OnNonfinite::kSkip;
  EXPECT_THROW(run(), Error);
}

// Stages that update on their own cannot leave a step out together.
TEST_F(Float16, NeedsSchedulesThatUpdateTogether) {
  config_.pipeline.devices = 2;
  config_.pipeline.split = {"l2"};  // how stale gradients are depends on the cut
  config_.pipeline.schedule = "pipedream";
  try {
    run();
    FAIL() << "an adapting scale was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("`loss-scale`"), std::string::npos) << error.message();
  }
  config_.optimization.loss_scale = 256;
  const Losses scaled = run("scaled.onnx");
  config_.optimization.loss_scale = 128;
  EXPECT_EQ(run("other.onnx").losses, scaled.losses);
  EXPECT_TRUE(get_file(folder_ / "other.onnx") == get_file(folder_ / "scaled.onnx"));
  EXPECT_LT(scaled.losses.back(), scaled.losses.front());
}

}  // namespace
}  // namespace pipetrain
