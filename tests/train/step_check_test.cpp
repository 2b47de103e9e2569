// A step that is computed twice: flipped bits are found, and the stage that they were in is named.
#include "train/step_check.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "support/temporary_directory.h"
#include "train/batch_source.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

HostTensor ramp(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int next = 0;
  for (float& x : out.span<float>()) x = 0.6F * static_cast<float>((++next * 37) % 23 - 11) / 11;
  return out;
}

/// Three layers, one for each stage.
void write_three_layers(const std::filesystem::path& path) {
  OnnxBuilder builder("three");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w0", ramp({8, 6}));
  builder.initializer("w1", ramp({8, 8}));
  builder.initializer("w2", ramp({4, 8}));
  const std::vector<OnnxAttribute> transposed = {OnnxAttribute::of_int("transB", 1)};
  builder.node("Gemm", {"x", "w0"}, {"h0"}, transposed, "l0");
  builder.node("Tanh", {"h0"}, {"t0"}, {}, "a0");
  builder.node("Gemm", {"t0", "w1"}, {"h1"}, transposed, "l1");
  builder.node("Tanh", {"h1"}, {"t1"}, {}, "a1");
  builder.node("Gemm", {"t1", "w2"}, {"logits"}, transposed, "l2");
  builder.write(path);
}

/// The micro-batches of a step, which is damaged when the first stage begins round `round`, counted
/// from 0.
class Damaging final : public MicroBatchSource {
 public:
  explicit Damaging(BatchUnits& units) : units_(units) {}
  MicroBatch& acquire(int unit) override {
    // Micro-batch 0 is asked for once by the check, for its step; then in each round by the stages,
    // of which stage 0 is the first, and by the check, for its loss.
    const int asked = unit == 0 ? asked_++ - 1 : -1;
    if (damage && asked == round * (kStages + 1)) damage();
    return units_.acquire(unit);
  }
  void release(int unit) override { units_.release(unit); }
  double learning_rate(int unit) const override { return units_.learning_rate(unit); }
  std::int64_t updates_before() const override { return units_.updates_before(); }

  std::function<void()> damage;
  int round = 1;

 private:
  static constexpr int kStages = 3;
  BatchUnits& units_;
  std::atomic<int> asked_{0};
};

class StepCheckTest : public testing::Test {
 protected:
  StepCheckTest() {
    write_three_layers(folder_.path() / "three.onnx");
    config_.model.path = (folder_.path() / "three.onnx").string();
    config_.data.synthetic_samples = 48;
    config_.pipeline.threads = 1;
    config_.pipeline.pin = false;
    config_.pipeline.profile_cache = false;
    config_.pipeline.devices = 3;
    config_.pipeline.split = {"l1", "l2"};
    config_.pipeline.micro_batches = 4;
    config_.optimization.batch_size = 16;
    config_.optimization.optimizer = default_settings(OptimizerKind::kAdam);
  }

  /// Checks a step that is damaged by `damage`; returns the message of the error, or "".
  std::string check(int round, const std::function<void(PipelineRun&)>& damage) {
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network);
    StepCheck check(run);
    std::vector<HostTensor> memory;
    std::vector<Tensor> columns;
    for (const Column& column : network.data().train->columns()) {
      memory.emplace_back(column.batch_type(16));
      columns.push_back(memory.back().view());
    }
    const std::vector<std::size_t> indices = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    gather_batch(*network.data().train, 0, indices, columns);
    BatchUnits units(run, /*evaluation=*/false);
    units.set(columns, 16, 0, 0.01);
    Damaging source(units);
    source.round = round;
    if (damage) source.damage = [&] { damage(run); };
    input_ = columns[0];
    try {
      check.run(run.program(network.units_of(16)), source, /*follows=*/false);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      return error.message();
    }
    return "";
  }

  static void flip_weight(PipelineRun& run, const std::string& name) {
    const HostTensor before = run.runtime().read(name);
    HostTensor weight(before.type());
    std::memcpy(weight.view().data, before.view().data, before.type().bytes());
    static_cast<unsigned char*>(weight.view().data)[4 * 5 + 1] ^= 8U;
    run.runtime().write(name, weight);
  }

  TemporaryDirectory folder_;
  RunConfig config_;
  Tensor input_;
};

TEST_F(StepCheckTest, PassesWhereNothingIsDamaged) { EXPECT_EQ(check(0, {}), ""); }

TEST_F(StepCheckTest, NamesTheStageOfAFlippedWeight) {
  for (const int round : {0, 1}) {
    for (int stage = 0; stage < 3; ++stage) {
      const std::string message =
          check(round, [&](PipelineRun& run) { flip_weight(run, "w" + std::to_string(stage)); });
      EXPECT_NE(message.find("step 1 computed twice has different bits, first in stage " +
                             std::to_string(stage)),
                std::string::npos)
          << round << ": " << message;
    }
  }
}

TEST_F(StepCheckTest, NamesTheStageAndMicroBatchOfAFlippedActivation) {
  for (const std::size_t micro_batch : {0, 2, 3}) {
    const std::string message = check(1, [&](PipelineRun&) {
      auto* bytes = static_cast<unsigned char*>(input_.data);
      bytes[(micro_batch * 4 * 6 + 3) * 4 + 2] ^= 16U;
    });
    EXPECT_NE(
        message.find("stage 0: the activations of micro-batch " + std::to_string(micro_batch)),
        std::string::npos)
        << message;
  }
}

TEST_F(StepCheckTest, FindsWhatChangesBetweenSteps) {
  struct : TrainingObserver {
    void on_step(const StepReport& report) override {
      if (report.step == 2) flip_weight(*run, "w1");
    }
    PipelineRun* run = nullptr;
  } observer;
  config_.optimization.max_steps = 4;
  PlannedNetwork network = plan_network(config_);
  PipelineRun run(network);
  observer.run = &run;
  TrainingOptions options;
  options.verify_every = 1;
  try {
    train(run, observer, options);
    ADD_FAILURE() << "a flipped bit went unnoticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(
        error.message().find("stage 1: weight \"w1\" has changed in memory between steps 2 and 3"),
        std::string::npos)
        << error.message();
  }
}

TEST_F(StepCheckTest, ChangesNoBitAndGivesADigestOfTheWeights) {
  config_.optimization.max_steps = 6;
  struct Digests final : TrainingObserver {
    void on_step(const StepReport& report) override {
      losses.push_back(report.loss);
      digests.push_back(report.weights_digest);
    }
    std::vector<double> losses;
    std::vector<std::string> digests;
  };
  const auto train_with = [&](std::int64_t verify_every) {
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network);
    TrainingOptions options;
    options.verify_every = verify_every;
    Digests digests;
    train(run, digests, options);
    return digests;
  };
  const Digests plain = train_with(0), every = train_with(1), second = train_with(2);
  EXPECT_EQ(every.losses, plain.losses);
  EXPECT_EQ(second.losses, plain.losses);
  EXPECT_EQ(plain.digests, std::vector<std::string>(6));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(every.digests[i].size(), 64U);
    EXPECT_EQ(second.digests[i], i % 2 ? every.digests[i] : "") << i;
  }
  // The same weights on another cut.
  config_.pipeline.devices = 2;
  config_.pipeline.split = {"l2"};
  EXPECT_EQ(train_with(1).digests, every.digests);
}

}  // namespace
}  // namespace pipetrain
