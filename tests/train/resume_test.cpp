// A run that is stopped and taken up again is the run that was not stopped, to the bit.
#include "train/resume.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "profile/profile.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

HostTensor scaled_weight(Shape shape, float scale) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int next = 0;
  for (float& x : out.span<float>()) x = scale * static_cast<float>((++next * 37) % 23 - 11) / 11;
  return out;
}

HostTensor filled(std::int64_t count, float value) {
  HostTensor out(TensorType{DType::kFloat32, Shape{count}});
  for (float& x : out.span<float>()) x = value;
  return out;
}

/// Six layers with a BatchNorm and a Dropout between them, for 6 inputs and 4 classes.
void write_network(const std::filesystem::path& path) {
  OnnxBuilder builder("layers");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  std::string in = "x";
  const auto layer = [&](int number, std::int64_t from, std::int64_t to, const std::string& out) {
    const std::string name = "l" + std::to_string(number);
    builder.initializer(name + ".weight", scaled_weight({to, from}, 0.7F));
    builder.initializer(name + ".bias", scaled_weight({to}, 0.1F));
    builder.node("Gemm", {in, name + ".weight", name + ".bias"}, {out},
                 {OnnxAttribute::of_int("transB", 1)}, name);
    in = out;
  };
  for (int i = 1; i <= 5; ++i) {
    layer(i, i == 1 ? 6 : 8, 8, "h" + std::to_string(i));
    const std::string out = "t" + std::to_string(i);
    if (i == 2) {
      builder.initializer("norm.weight", filled(8, 1));
      builder.initializer("norm.bias", filled(8, 0));
      builder.initializer("norm.mean", filled(8, 0));
      builder.initializer("norm.var", filled(8, 1));
      builder.node("BatchNormalization", {in, "norm.weight", "norm.bias", "norm.mean", "norm.var"},
                   {out}, {}, "norm");
    } else if (i == 4) {
      HostTensor ratio = HostTensor::scalar(0.25F);
      HostTensor yes(TensorType{DType::kBool, Shape{}});
      *yes.view().as<std::uint8_t>() = 1;
      builder.initializer("ratio", ratio);
      builder.initializer("yes", yes);
      builder.node("Dropout", {in, "ratio", "yes"}, {out}, {}, "drop");
    } else {
      builder.node("Tanh", {in}, {out}, {}, "act" + std::to_string(i));
    }
    in = out;
  }
  layer(6, 8, 4, "logits");
  builder.write(path);
}

/// Asks a run to stop once so many steps have been reported, and keeps the losses.
struct Stopper final : TrainingObserver {
  explicit Stopper(std::int64_t steps) : stop_after(steps) {}
  void on_step(const StepReport& report) override { losses[report.step] = report.loss; }
  void on_evaluation(const EvaluationReport& report) override {
    evaluations[report.step] = report.loss;
  }
  RunRequests requests() override { return {asked++ + 1 == stop_after, false}; }
  std::int64_t stop_after;
  std::atomic<std::int64_t> asked{0};
  std::map<std::int64_t, double> losses, evaluations;
};

struct Outcome {
  std::map<std::int64_t, double> losses, evaluations;
  std::optional<BestResult> best;
  std::string bytes;
  std::int64_t steps = 0;
  bool in_flight = false;  // went on inside an asynchronous round
  std::vector<std::string> changes;
  LossScale scale;  // at the end
};

class Resume : public testing::Test {
 protected:
  Resume() {
    write_network(folder_ / "net.onnx");
    config_ = test::small_run(folder_ / "net.onnx");
    config_.optimization.warmup = 3;
  }

  /// What the command line would hand down: some of what decides numbers.
  std::vector<Setting> numbers() const {
    return {{"precision", config_.model.precision == DType::kFloat16 ? "fp16" : "fp32"},
            {"lr", fmt::format("{}", config_.optimization.learning_rate.peak)}};
  }

  void set_schedule(const char* name) {
    config_.pipeline.schedule = name;
    const bool whole = config_.pipeline.schedule == "pipedream" ||
                       config_.pipeline.schedule == "pipedream-vertical";
    config_.pipeline.micro_batches = whole ? 0 : 4;
  }

  void set_stages(int stages) {
    config_.pipeline.devices = stages;
    config_.pipeline.cuts.clear();
    for (int s = 1; s < stages; ++s) config_.pipeline.cuts.push_back(s * 12 / stages);
  }

  /// Trains from the newest checkpoint in `name` if there is one; stops after `steps` more.
  Outcome run(const std::string& name, std::int64_t steps = -1) {
    const std::filesystem::path checkpoints = folder_ / name;
    const auto found = newest_checkpoint(checkpoints);
    // Kernel times decide nothing here: one measurement is enough.
    const std::filesystem::path profile =
        folder_ / fmt::format("profile-{}-{}", config_.pipeline.micro_batches,
                              name_of(config_.model.precision));
    config_.pipeline.profile_path = std::filesystem::exists(profile) ? profile.string() : "";
    PlannedNetwork network = plan_network(config_);
    if (config_.pipeline.profile_path.empty())
      write_profile(profile, network.profile(), network.graph(), "net.onnx");
    TrainingOptions options;
    Outcome out;
    std::optional<ProgramCut> cut;
    PipelineRun run(network, found ? first_round(network, found->checkpoint) : 0);
    if (found) {
      out.changes = compare_run(network, found->checkpoint, numbers());
      cut = restore(run, found->checkpoint);
      options.resumed = &found->checkpoint;
      options.cut = cut ? &*cut : nullptr;
      out.in_flight = cut.has_value();
    }
    options.save.folder = checkpoints;
    options.save.run = describe_run(network, {}, numbers());
    Stopper stopper(steps);
    const TrainingSummary summary = train(run, stopper, options);
    out.steps = summary.steps;
    out.best = summary.best;
    out.losses = stopper.losses;
    out.evaluations = stopper.evaluations;
    out.scale = run.runtime().loss_scale();
    run.export_model((folder_ / (name + ".onnx")).string());
    out.bytes = get_file(folder_ / (name + ".onnx"));
    return out;
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

// The frozen tensors would have the values of the model's file again.
TEST_F(Resume, WhatIsTrainedIsNotFrozenAtItsFirstValues) {
  set_schedule("1f1b");
  set_stages(2);
  run("run", 3);
  config_.model.parameters.freeze = {"l1.*"};
  std::filesystem::remove(folder_ / "profile-4-float32");  // of another graph
  try {
    run("run");
    FAIL() << "went on from other weights";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("\"l1.bias\""), std::string::npos) << error.message();
  }
}

class ResumeSchedule : public Resume, public testing::WithParamInterface<const char*> {};

// 50 samples in batches of 8: 7 steps an epoch, the last of 2 samples; 14 steps in all.
TEST_P(ResumeSchedule, IsTheRunThatWasNotStopped) {
  set_schedule(GetParam());
  set_stages(3);
  const bool stream = std::string_view(GetParam()).starts_with("pipedream");
  const Outcome whole = run("whole");
  ASSERT_EQ(whole.losses.size(), 14U);
  for (int stop = 1; stop < 14; ++stop) {
    const std::string name = "stop" + std::to_string(stop);
    const Outcome first = run(name, stop);
    ASSERT_EQ(first.steps, stop);
    ASSERT_EQ(first.losses.size(), static_cast<std::size_t>(stop));
    const Outcome second = run(name);
    EXPECT_EQ(second.in_flight, stream && stop % 7 != 0) << stop;
    EXPECT_TRUE(second.changes.empty()) << second.changes.front();
    for (const auto& [step, loss] : whole.losses)
      EXPECT_EQ(step <= stop ? first.losses.at(step) : second.losses.at(step), loss)
          << stop << ", step " << step;
    EXPECT_TRUE(second.bytes == whole.bytes) << "stopped after " << stop;
  }
}

TEST_P(ResumeSchedule, ManyTimesInARow) {
  set_schedule(GetParam());
  set_stages(4);
  const Outcome whole = run("whole");
  Outcome last;
  for (int step = 0; step < 14; ++step) last = run("parts", 1);
  EXPECT_EQ(last.steps, 14);
  EXPECT_TRUE(last.bytes == whole.bytes);
}

INSTANTIATE_TEST_SUITE_P(All, ResumeSchedule,
                         testing::Values("gpipe", "1f1b", "zb-h1", "pipedream",
                                         "pipedream-vertical", "pipedream-2bw"));

// 40 samples: 5 steps an epoch. A stop does not wait for a validation that is due, which the next
// run makes up for.
TEST_F(Resume, NoValidationIsLeftOut) {
  config_.data.validation_split = 0.2;
  for (const char* schedule : {"1f1b", "pipedream"}) {
    set_schedule(schedule);
    set_stages(2);
    config_.optimization.evaluate_by_steps = schedule == std::string_view("1f1b");
    config_.optimization.evaluate_every = config_.optimization.evaluate_by_steps ? 2 : 1;
    const Outcome whole = run(fmt::format("{}-whole", schedule));
    ASSERT_TRUE(whole.best);
    for (int stop = 1; stop < 10; ++stop) {
      const std::string name = fmt::format("{}-{}", schedule, stop);
      const Outcome first = run(name, stop);
      const Outcome second = run(name);
      std::map<std::int64_t, double> all = first.evaluations;
      for (const auto& [step, loss] : second.evaluations)
        EXPECT_TRUE(all.emplace(step, loss).second) << name << ", again at step " << step;
      EXPECT_EQ(all, whole.evaluations) << name;
      ASSERT_TRUE(second.best) << name;
      EXPECT_EQ(second.best->step, whole.best->step) << name;
      EXPECT_EQ(second.best->value, whole.best->value) << name;
      EXPECT_EQ(second.best->stalled, whole.best->stalled) << name;
      EXPECT_TRUE(second.bytes == whole.bytes) << name;
    }
  }
}

// Where the run was stopped it now ends, which asks for a validation whether one was due or not.
TEST_F(Resume, TheLastStepIsValidatedOnce) {
  config_.data.validation_split = 0.2;
  config_.optimization.warmup = 0;
  const std::int64_t all = config_.optimization.max_steps;
  for (const char* schedule : {"1f1b", "pipedream"}) {
    set_schedule(schedule);
    set_stages(2);
    config_.optimization.evaluate_by_steps = schedule == std::string_view("1f1b");
    config_.optimization.evaluate_every = config_.optimization.evaluate_by_steps ? 2 : 1;
    for (int stop = 1; stop < 10; ++stop) {
      const std::string name = fmt::format("{}-{}", schedule, stop);
      const Outcome first = run(name, stop);
      config_.optimization.max_steps = stop;
      const Outcome second = run(name);
      config_.optimization.max_steps = all;
      EXPECT_TRUE(second.losses.empty()) << name;
      EXPECT_FALSE(first.evaluations.contains(stop)) << name;
      EXPECT_EQ(second.evaluations.size(), 1U) << name;
      EXPECT_TRUE(second.evaluations.contains(stop)) << name;
      EXPECT_TRUE(second.best) << name;
    }
  }
}

TEST_F(Resume, OnAnotherNumberOfStagesGivesTheSameLosses) {
  std::map<std::int64_t, double> expected;
  for (const int before : {1, 2, 3, 4, 6}) {
    for (const int after : {1, 2, 3, 4, 6}) {
      const std::string name = std::to_string(before) + "-" + std::to_string(after);
      set_stages(before);
      Outcome all = run(name, 5);
      set_stages(after);
      config_.pipeline.schedule = after % 2 ? "gpipe" : "1f1b";
      const Outcome rest = run(name);
      EXPECT_TRUE(rest.changes.empty()) << rest.changes.front();
      all.losses.insert(rest.losses.begin(), rest.losses.end());
      if (expected.empty()) expected = all.losses;
      EXPECT_EQ(all.losses, expected) << name;
    }
  }
}

// Some are left out before the stop, some behind it, some last before it.
TEST_F(Resume, InFloat16WithStepsLeftOut) {
  config_.model.precision = DType::kFloat16;
  config_.optimization.batch_size = 1;
  config_.optimization.max_steps = 14;
  const Outcome whole = run("whole");
  EXPECT_GE(whole.scale.skipped, 2);
  EXPECT_LT(whole.scale.skipped, 7);
  EXPECT_EQ(whole.scale.value, 65536 / std::exp2(whole.scale.skipped));
  std::int64_t before = 0, behind = 0;
  for (int stop = 1; stop < 14; ++stop) {
    const std::string name = "stop" + std::to_string(stop);
    set_stages(3);
    const std::int64_t skipped = run(name, stop).scale.skipped;
    before += skipped > 0;
    behind += skipped < whole.scale.skipped;
    set_stages(1 + stop % 4);
    const Outcome second = run(name);
    EXPECT_TRUE(second.changes.empty()) << second.changes.front();
    for (const auto& [step, loss] : second.losses)
      EXPECT_EQ(loss, whole.losses.at(step)) << stop << ", step " << step;
    EXPECT_EQ(second.scale, whole.scale);
    EXPECT_TRUE(second.bytes == whole.bytes) << "stopped after " << stop;
  }
  EXPECT_GT(before, 3);
  EXPECT_GT(behind, 3);
  // Another precision has no scale, but its updates are counted from those that were made.
  const LossScale left = run("float", 5).scale;
  config_.model.precision = DType::kFloat32;
  const Outcome rest = run("float");
  EXPECT_EQ(rest.changes, std::vector<std::string>{"precision fp16 → fp32"});
  EXPECT_EQ(rest.scale, (LossScale{1, 0, left.skipped}));
}

TEST_F(Resume, OfAStreamWithReplicas) {
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.replicas = {2, 1};
  config_.pipeline.devices = 3;
  config_.pipeline.cuts = {6};
  const Outcome whole = run("whole");
  for (const int stop : {1, 2, 3, 5}) {
    const std::string name = "stop" + std::to_string(stop);
    const Outcome first = run(name, stop);
    EXPECT_EQ(first.steps % 7 % 2, 0) << "both replicas have made their updates";
    const Outcome second = run(name);
    EXPECT_TRUE(second.in_flight || first.steps == 7);
    EXPECT_TRUE(second.bytes == whole.bytes) << "stopped after " << first.steps;
  }
}

TEST_F(Resume, OfAStreamOnOtherStagesTrainsEveryBatchOnce) {
  config_.pipeline.schedule = "pipedream";
  set_stages(3);
  run("run", 3);
  set_stages(2);
  const Outcome rest = run("run");
  EXPECT_FALSE(rest.in_flight);
  EXPECT_FALSE(rest.changes.empty());
  EXPECT_EQ(rest.losses.size(), 11U);
  EXPECT_EQ(rest.losses.begin()->first, 4);
  EXPECT_EQ(rest.steps, 14);
  // And under a schedule that waits for its updates.
  set_stages(3);
  config_.pipeline.schedule = "pipedream";
  run("other", 3);
  config_.pipeline.schedule = "1f1b";
  EXPECT_EQ(run("other").losses.size(), 11U);
}

// A device that may hold one mini-batch only reads newer weights.
TEST_F(Resume, OfAStreamThatHoldsFewerMiniBatches) {
  config_.pipeline.schedule = "pipedream";
  set_stages(3);
  run("run", 3);
  config_.pipeline.memory_units = 1;
  const Outcome rest = run("run");
  EXPECT_FALSE(rest.in_flight);
  EXPECT_EQ(rest.changes, std::vector<std::string>{"memory-units 0 → 1"});
  EXPECT_EQ(rest.losses.size(), 11U);
  // What does not change goes on.
  config_.pipeline.memory_units = 2;
  const Outcome whole = run("whole");
  run("part", 3);
  const Outcome last = run("part");
  EXPECT_TRUE(last.in_flight);
  EXPECT_TRUE(last.changes.empty());
  EXPECT_TRUE(last.bytes == whole.bytes);
}

TEST_F(Resume, RefusesAnotherNetworkOtherDataAnotherOptimizer) {
  run("run", 3);
  const auto refused = [&](ErrorKind kind, const char* says) {
    try {
      run("run");
      ADD_FAILURE() << says;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(error.message().find(says), std::string::npos) << error.what();
    }
  };
  const RunConfig good = config_;
  config_.data.synthetic_samples = 51;
  refused(ErrorKind::kData, "51 samples");
  config_ = good;
  config_.optimization.optimizer = default_settings(OptimizerKind::kSgd);
  refused(ErrorKind::kUsage, "adam");
  config_ = good;
  config_.optimization.learning_rate.peak = 0.01;
  EXPECT_EQ(run("run").changes, std::vector<std::string>{"lr 0.02 → 0.01"});
}

/// Asks for a checkpoint at a step and keeps the names of those that were written.
struct Asker final : TrainingObserver {
  void on_checkpoint(const SaveOutcome& outcome) override {
    if (outcome.written)
      written.push_back(outcome.written->path.filename().string() + " " + outcome.written->reason);
  }
  RunRequests requests() override { return {false, ++asked == 2}; }
  std::atomic<int> asked{0};
  std::vector<std::string> written;
};

TEST_F(Resume, CheckpointsComeAtTheirStepsAndOnRequest) {
  config_.data.validation_split = 0.2;  // 40 samples: 5 steps an epoch
  for (const char* schedule : {"1f1b", "pipedream"}) {
    config_.pipeline.schedule = schedule;
    set_stages(2);
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network);
    TrainingOptions options;
    options.save.folder = folder_ / schedule;
    options.save.every = SaveEvery::parse("3");
    options.save.keep = 0;
    options.save.run = describe_run(network, {}, numbers());
    Asker asker;
    const TrainingSummary summary = train(run, asker, options);
    ASSERT_EQ(asker.written.size(), 6U) << schedule;
    EXPECT_EQ(asker.written[0], "step-000002 asked");
    EXPECT_EQ(asker.written[1], "step-000003 every");
    EXPECT_EQ(asker.written[2], "step-000005 best");
    EXPECT_EQ(asker.written[3], "step-000006 every");
    EXPECT_EQ(asker.written[4], "step-000009 every");
    EXPECT_TRUE(asker.written[5].starts_with("step-000010")) << asker.written[5];
    EXPECT_EQ(summary.last_checkpoint.filename(), "step-000010");
    ASSERT_TRUE(summary.best);
  }
}

TEST_F(Resume, AFullDiskEndsTheRunOnlyWhileStepsAreLeft) {
  put_file(folder_ / "run", "not a folder");
  for (const char* every : {"5", "1"}) {  // the third failure: at the end, after step 14, or before
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network);
    TrainingOptions options;
    options.save.folder = folder_ / "run";
    options.save.every = SaveEvery::parse(every);
    options.save.run = describe_run(network, {}, numbers());
    Stopper never(-1);
    if (*every == '1') {
      EXPECT_THROW(train(run, never, options), Error);
      EXPECT_LT(never.losses.size(), 14U);
    } else {
      EXPECT_NE(train(run, never, options).save_failure.find("3 checkpoints in a row"),
                std::string::npos);
      EXPECT_EQ(never.losses.size(), 14U);
    }
  }
}

}  // namespace
}  // namespace pipetrain
