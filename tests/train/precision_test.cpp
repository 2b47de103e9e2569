// Training in mixed precision: the same bits for every cut, float weights in files and checkpoints.
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_io/reader.h"
#include "support/temporary_directory.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

struct Losses final : TrainingObserver {
  void on_step(const StepReport& report) override { losses.push_back(report.loss); }
  std::vector<double> losses;
};

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
    Session session(config_);
    session.open();
    session.plan();
    session.start();
    Losses recorder;
    train(session, recorder);
    session.export_model((folder_.path() / output).string());
    return recorder.losses;
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

}  // namespace
}  // namespace pipetrain
