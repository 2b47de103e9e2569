// The first value that is not finite is named by its node, pass, micro-batch and sample.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "pipeline/runtime/nonfinite_log.h"
#include "support/temporary_directory.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

HostTensor positive(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, shape});
  int next = 0;
  for (float& x : out.span<float>()) x = static_cast<float>((++next * 37) % 23 + 3) / 50;
  return out;
}

/// first → hard → second → third: `hard` gets 0 for a sample of zeros.
void write_hard(const std::filesystem::path& path, const std::string& operation) {
  OnnxBuilder builder("hard");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w1", positive({6, 8}));
  builder.initializer("w2", positive({8, 8}));
  builder.initializer("w3", positive({8, 4}));
  builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "first");
  builder.node(operation, {"h"}, {"t"}, {}, "hard");
  builder.node("MatMul", {"t", "w2"}, {"u"}, {}, "second");
  builder.node("MatMul", {"u", "w3"}, {"logits"}, {}, "third");
  builder.write(path);
}

/// Whose gradient of w2 overflows in the first step, though nothing that goes from stage to stage
/// does: 4e38 to 8e38, of 16 samples with at most 9e37 each and 2.4e38 in a micro-batch of 4.
void write_overflowing(const std::filesystem::path& path) {
  const auto scaled = [](Shape shape, float scale) {
    HostTensor out = positive(shape);
    for (float& x : out.span<float>()) x *= scale;
    return out;
  };
  HostTensor last = scaled({32, 4}, 1);
  for (std::size_t i = 0; i < 128; i += 4) last.span<float>()[i] = 50;  // of class 0
  OnnxBuilder builder("overflowing");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w1", scaled({6, 32}, 2e36F));
  builder.initializer("w2", scaled({32, 32}, 1e-37F));
  builder.initializer("w3", last);
  builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "first");
  builder.node("Relu", {"h"}, {"t"}, {}, "positive");
  builder.node("MatMul", {"t", "w2"}, {"u"}, {}, "second");
  builder.node("MatMul", {"u", "w3"}, {"logits"}, {}, "third");
  builder.write(path);
}

constexpr int kSamples = 48, kZeros = 25;  // in step 2 of batches of 16: sample 9, micro-batch 2

class Nonfinite : public testing::Test {
 protected:
  Nonfinite() {
    std::ofstream data(folder_.path() / "data.csv");
    data << "a,b,c,d,e,f,label\n";
    for (int sample = 0; sample < kSamples; ++sample) {
      for (int k = 0; k < 6; ++k)
        data << (sample == kZeros ? 0 : 1 + (sample * 7 + k * 5) % 9) << ',';
      data << sample % 4 << '\n';
    }
    config_.model.path = (folder_.path() / "hard.onnx").string();
    config_.data.path = (folder_.path() / "data.csv").string();
    config_.pipeline.threads = 1;
    config_.pipeline.profile_cache = false;
    config_.optimization.batch_size = 16;
    config_.optimization.shuffle = false;
    config_.optimization.optimizer = default_settings(OptimizerKind::kSgd);
    config_.optimization.learning_rate.peak = 1e-5;
  }

  std::string message(const std::string& operation, const std::string& schedule, int devices) {
    write_hard(config_.model.path, operation);
    return message_of_run(schedule, devices);
  }
  std::string message_of_run(const std::string& schedule, int devices) {
    config_.pipeline.schedule = schedule;
    config_.pipeline.devices = devices;
    try {
      PlannedNetwork network = plan_network(config_);
      PipelineRun run(network);
      TrainingObserver observer;
      train(run, observer);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDiverged) << error.what();
      return error.message();
    }
    ADD_FAILURE() << "it went on";
    return {};
  }
  static void expect(const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

/// Schedules and numbers of devices.
const std::vector<std::pair<std::string, int>> kSynchronous = {
    {"1f1b", 1}, {"gpipe", 2}, {"1f1b", 3}, {"zb-h1", 2}, {"zb-v", 2}, {"interleaved-1f1b", 2}};

TEST_F(Nonfinite, OfTheForwardPassInEverySchedule) {
  config_.pipeline.micro_batch_size = 4;
  for (const auto& [schedule, devices] : kSynchronous) {
    SCOPED_TRACE(schedule);
    const std::string text = message("Log", schedule, devices);
    expect(text, "loss is not finite at step 2: node hard (Log) made the first infinite value");
    expect(text,
           "in the forward pass of micro-batch 2 in step 2, for sample 9 of the mini-batch, "
           "on stage ");
    expect(text, "(sample 25 of the data");
  }
}

TEST_F(Nonfinite, OfTheBackwardPassInEverySchedule) {
  config_.pipeline.micro_batch_size = 4;
  for (const auto& [schedule, devices] : kSynchronous) {
    SCOPED_TRACE(schedule);
    const std::string text = message("Sqrt", schedule, devices);
    // The update of step 2 has spoiled the weights.
    expect(text, "loss is not finite at step 3: node hard ");
    expect(text,
           "in the backward pass of micro-batch 2 in step 2, for sample 9 of the mini-batch, "
           "on stage ");
    expect(text, "(sample 25 of the data");
  }
}

// Gradients that are computed once for all micro-batches, perhaps by another device.
TEST_F(Nonfinite, OfBatchedGradientsInEverySchedule) {
  config_.pipeline.micro_batch_size = 4;
  write_overflowing(config_.model.path);
  for (const auto& [schedule, devices] : kSynchronous) {
    SCOPED_TRACE(schedule);
    const std::string text = message_of_run(schedule, devices);
    expect(text, "loss is not finite at step 2: node second ");
    expect(text, "w2");
    expect(text, "not finite in the backward pass in step 1, on stage ");
  }
}

TEST_F(Nonfinite, OfAsynchronousSchedules) {
  config_.optimization.batch_size = 4;
  for (const auto& [schedule, devices] :
       std::vector<std::pair<std::string, int>>{{"pipedream", 2}, {"pipedream", 3}}) {
    SCOPED_TRACE(schedule);
    expect(message("Log", schedule, devices),
           "in the forward pass of micro-batch 0 in step 7, for sample 1 of the mini-batch, on "
           "stage ");
    const std::string text = message("Sqrt", schedule, devices);
    expect(text, "node hard ");
    expect(text,
           "in the backward pass of micro-batch 0 in step 7, for sample 1 of the mini-batch, "
           "on stage ");
    expect(text, "(sample 25 of the data");
  }
}

TEST_F(Nonfinite, AlsoWithOneMicroBatchAndWithReplicas) {
  config_.pipeline.micro_batches = 1;
  // In bfloat16 the gradients lie where rounded weights were.
  for (const DType precision : {DType::kBFloat16, DType::kFloat32}) {
    config_.model.precision = precision;
    expect(message("Log", "1f1b", 1),
           "in the forward pass of micro-batch 0 in step 2, for sample 9");
    expect(message("Sqrt", "1f1b", 1),
           "in the backward pass of micro-batch 0 in step 2, for sample 9 of the mini-batch");
  }
  config_.pipeline.micro_batches = 4;
  config_.pipeline.replicas = {2};
  expect(message("Log", "1f1b", 2), "in the forward pass of micro-batch 2 in step 2, for sample 9");
  // The replicas add up while they compute, so that only the sum can be looked at.
  expect(message("Sqrt", "1f1b", 2), "in the backward pass in step 2, on stage 0");
}

TEST_F(Nonfinite, SearchesChangeNoBit) {
  // A step that is skipped is searched, too.
  config_.optimization.on_nonfinite = OnNonfinite::kSkip;
  config_.optimization.epochs = 2;
  write_hard(config_.model.path, "Sqrt");
  const auto weights = [&](int devices, int micro_batch_size = 4) {
    config_.pipeline.micro_batch_size = micro_batch_size;
    config_.pipeline.devices = devices;
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network);
    TrainingObserver observer;
    const TrainingSummary summary = train(run, observer);
    EXPECT_EQ(summary.skipped_steps, 2);
    return run.runtime().read("w1").to_doubles();
  };
  const std::vector<double> one = weights(1);
  EXPECT_EQ(one, weights(2));
  for (const double value : one) EXPECT_TRUE(std::isfinite(value));
  config_.model.precision = DType::kBFloat16;
  for (const double value : weights(1, /*micro_batch_size=*/16)) EXPECT_TRUE(std::isfinite(value));
}

TEST(NonfiniteLog, WhatDidTheLossNoHarmIsForgotten) {
  NonfiniteLog log(2);
  NonfiniteValue mask;
  mask.place = PassPlace{.step = 3, .micro_batch = 1};
  log.found(mask);
  EXPECT_FALSE(log.wants(1, false));  // one is enough
  log.loss_is_finite({.step = 3, .micro_batch = 0}, 4);
  EXPECT_TRUE(log.first().has_value());  // another micro-batch
  log.loss_is_finite({.step = 3, .micro_batch = 1}, 4);
  EXPECT_FALSE(log.first().has_value());
  EXPECT_TRUE(log.wants(1, false));
  EXPECT_FALSE(log.wants(0, false)) << "its stage need not look again";
  EXPECT_TRUE(log.wants(0, true));

  NonfiniteValue gradient;
  gradient.backward = true;
  gradient.place = PassPlace{.step = 5, .micro_batch = 1};
  log.found(gradient);
  log.loss_is_finite({.step = 9, .micro_batch = 0}, 4);
  EXPECT_TRUE(log.first().has_value());  // old weights may still be read
  NonfiniteValue earlier = gradient;
  earlier.place->step = 4;
  log.found(earlier);
  EXPECT_EQ(log.first()->place->step, 4U);
  log.loss_is_finite({.step = 9, .micro_batch = 0}, 4);
  EXPECT_FALSE(log.first().has_value());
}

}  // namespace
}  // namespace pipetrain
