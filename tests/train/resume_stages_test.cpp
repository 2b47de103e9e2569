// The stages of a run that goes on from a checkpoint: the same cuts of the same order of nodes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "passes/linearise.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "train/resume.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

/// Two branches of three layers and the sum of both, for 6 inputs and 4 classes.
void write_two_branches(const std::filesystem::path& path) {
  OnnxBuilder builder("branches");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  const auto layer = [&](const std::string& in, std::int64_t from, std::int64_t to,
                         const std::string& out) {
    HostTensor weight(TensorType{DType::kFloat32, Shape{from, to}});
    int next = 0;
    for (float& x : weight.span<float>()) x = static_cast<float>((++next * 37) % 23 - 11) / 20;
    builder.initializer(out + ".weight", weight);
    builder.node("MatMul", {in, out + ".weight"}, {out}, {}, out);
  };
  for (const char* name : {"a", "b"}) {
    const std::string branch = name;
    layer("x", 6, 8, branch + "1");
    layer(branch + "1", 8, 8, branch + "2");
    layer(branch + "2", 8, 8, branch + "3");
  }
  builder.node("Sum", {"a3", "b3"}, {"sum"}, {}, "sum");
  layer("sum", 8, 4, "logits");
  builder.write(path);
}

/// Asks a run to stop after so many steps; -1: never.
struct StopAfter final : TrainingObserver {
  explicit StopAfter(std::int64_t steps) : stop_after(steps) {}
  RunRequests requests() override { return {asked++ + 1 == stop_after, false}; }
  std::int64_t stop_after;
  std::atomic<std::int64_t> asked{0};
};

class ResumeStages : public testing::Test {
 protected:
  ResumeStages() {
    write_two_branches(folder_ / "net.onnx");
    config_ = test::small_run(folder_ / "net.onnx");
    config_.pipeline.devices = 2;
  }

  /// The first two nodes that may change places do, and the second stage begins between them.
  void change_order() {
    const ProfiledNetwork network{Network(config_)};
    const std::vector<int> standard = order_of(network.graph(), linearise(network.graph()));
    for (std::size_t i = 1; i < standard.size(); ++i) {
      std::vector<int> order = standard;
      std::swap(order[i - 1], order[i]);
      try {
        chain_in_order(network.graph(), order);
      } catch (const Error&) {
        continue;  // one of them reads the other
      }
      config_.pipeline.order = order;
      config_.pipeline.cuts = {static_cast<int>(i)};
      return;
    }
    FAIL() << "the network has one order only";
  }

  /// Trains from the newest checkpoint in `name` if there is one; stops after `steps` more. Whether
  /// mini-batches in flight were taken up.
  bool run(const std::string& name, std::int64_t steps = -1) {
    const auto found = newest_checkpoint(folder_ / name);
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network, found ? first_round(network, found->checkpoint) : 0);
    TrainingOptions options;
    std::optional<ProgramCut> cut;
    if (found) {
      cut = restore(run, found->checkpoint);
      options.resumed = &found->checkpoint;
      options.cut = cut ? &*cut : nullptr;
    }
    options.save.folder = folder_ / name;
    options.save.run = describe_run(network, {}, {});
    StopAfter observer(steps);
    train(run, observer, options);
    run.export_model((folder_ / (name + ".onnx")).string());
    return cut.has_value();
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

// 50 samples in batches of 8: the stream of the first epoch ends after step 7.
TEST_F(ResumeStages, OfAStreamAreCutInTheSameOrder) {
  config_.pipeline.schedule = "pipedream";
  change_order();
  const std::vector<int> order = config_.pipeline.order;
  ASSERT_FALSE(order.empty());
  run("whole");
  run("parts", 3);
  const auto saved = newest_checkpoint(folder_ / "parts");
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->checkpoint.order, order);
  EXPECT_TRUE(run("parts"));
  EXPECT_TRUE(get_file(folder_ / "parts.onnx") == get_file(folder_ / "whole.onnx"));
  // With the same cuts, the standard order has other stages.
  run("other", 3);
  config_.pipeline.order.clear();
  EXPECT_FALSE(run("other"));
}

// As in another precision, where there may be more or fewer nodes.
TEST_F(ResumeStages, ArePlannedAnewForOtherNodes) {
  change_order();
  const std::vector<int> order = config_.pipeline.order;
  ASSERT_FALSE(order.empty());
  EXPECT_EQ(plan_network(config_).given_cuts(), config_.pipeline.cuts);
  config_.pipeline.order.pop_back();
  const PlannedNetwork network = plan_network(config_);
  EXPECT_TRUE(network.given_cuts().empty());
  EXPECT_EQ(network.stages(), 2);
  // What is no order at all is refused.
  config_.pipeline.order = order;
  config_.pipeline.order[0] = order[1];
  EXPECT_THROW(plan_network(config_), Error);
}

TEST_F(ResumeStages, OfAStreamArePlannedAnewInAnotherPrecision) {
  config_.pipeline.schedule = "pipedream";
  config_.model.precision = DType::kBFloat16;
  const auto nodes = [&] { return linearise(Network(config_).graph()).order.size(); };
  const std::size_t narrow = nodes();
  config_.pipeline.cuts = {static_cast<int>(narrow / 2)};
  run("run", 3);
  const auto saved = newest_checkpoint(folder_ / "run");
  ASSERT_TRUE(saved);
  EXPECT_TRUE(saved->checkpoint.in_flight());
  EXPECT_EQ(saved->checkpoint.order.size(), narrow);
  // As the command line does for the same stages.
  config_.pipeline.cuts = saved->checkpoint.cuts;
  config_.pipeline.order = saved->checkpoint.order;
  config_.model.precision = DType::kFloat32;
  ASSERT_NE(nodes(), narrow);
  EXPECT_FALSE(run("run"));
}

// Cuts of one stage are none, and no order is needed to tell them.
TEST_F(ResumeStages, OfAStreamOnOneDeviceGoOnInAnotherPrecision) {
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.devices = 1;
  config_.model.precision = DType::kBFloat16;
  run("run", 3);
  const auto saved = newest_checkpoint(folder_ / "run");
  ASSERT_TRUE(saved);
  EXPECT_TRUE(saved->checkpoint.cuts.empty());
  config_.pipeline.order = saved->checkpoint.order;
  config_.model.precision = DType::kFloat32;
  EXPECT_NO_THROW(run("run"));
}

// Older checkpoints have an order only where it was not the standard one.
TEST_F(ResumeStages, OfAStreamGoOnFromACheckpointWithoutAnOrder) {
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.cuts = {4};
  run("run", 3);
  auto saved = newest_checkpoint(folder_ / "run");
  ASSERT_TRUE(saved);
  const PlannedNetwork network = plan_network(config_);
  EXPECT_TRUE(continues_in_flight(network, saved->checkpoint));
  saved->checkpoint.order.clear();
  EXPECT_TRUE(continues_in_flight(network, saved->checkpoint));
}

TEST_F(ResumeStages, OfOneDeviceEachAreNoReplicas) {
  const PlannedNetwork network = plan_network(config_);
  Checkpoint before;
  before.run = describe_run(network, {}, {});
  const auto changes_from = [&](const std::string& replicas) {
    for (auto& [name, value] : before.run.numbers) {
      if (name == "replicas") value = replicas;
    }
    return compare_run(network, before, {});
  };
  for (const char* one_each : {"1", "1,1", "1,1,1"})
    EXPECT_TRUE(changes_from(one_each).empty()) << one_each;
  EXPECT_EQ(changes_from("11"), std::vector<std::string>{"replicas 11 → 1,1"});
  EXPECT_EQ(changes_from("1,11"), std::vector<std::string>{"replicas 1,11 → 1,1"});
}

// Earlier versions recorded memory units among the options that were given only.
TEST_F(ResumeStages, OfAStreamWhoseMemoryUnitsAreInTheSettings) {
  config_.pipeline.schedule = "pipedream";
  config_.pipeline.cuts = {4};
  config_.pipeline.memory_units = 2;
  const PlannedNetwork network = plan_network(config_);
  Checkpoint before;
  before.run = describe_run(network, {}, {});
  ASSERT_EQ(std::erase_if(before.run.numbers,
                          [](const Setting& each) { return each.first == "memory-units"; }),
            1U);
  before.step = 3;
  before.cuts = network.plan().cuts();
  before.batches_per_epoch = network.batches_per_epoch();
  before.round_batches = network.round_batches(0);
  const auto expect_change_from = [&](std::vector<Setting> settings, const std::string& units) {
    before.run.settings = std::move(settings);
    const bool same = units == "2";
    EXPECT_EQ(compare_run(network, before, {}),
              same ? std::vector<std::string>()
                   : std::vector<std::string>{"memory-units " + units + " → 2"});
    EXPECT_EQ(continues_in_flight(network, before), same) << units;
  };
  expect_change_from({{"--memory-units", "2"}}, "2");
  expect_change_from({{"--schedule", "pipedream:memory-units=2"}}, "2");
  expect_change_from({{"--schedule", "pipedream"}, {"--schedule", ":memory-units=2"}}, "2");
  expect_change_from({{"--schedule", "pipedream:virtual-stages=1,memory-units=2"}}, "2");
  expect_change_from({{"--schedule", "pipedream:memory-units=3,virtual-stages=1"}}, "3");
  expect_change_from({{"--schedule", "pipedream"}}, "0");
  expect_change_from({}, "0");
}

// Earlier versions recorded no largest values where inputs have different ones.
TEST_F(ResumeStages, OfInputsThatAreDividedByTheirLargestValues) {
  const std::vector<Setting> now = {{"normalize", "max:{\"age\":90.0,\"income\":7.0}"}};
  const PlannedNetwork network = plan_network(config_);
  Checkpoint before;
  before.run = describe_run(network, {}, {{"normalize", "max"}});
  EXPECT_TRUE(compare_run(network, before, now).empty());
  before.run = describe_run(network, {}, {{"normalize", "max:{\"age\":80.0,\"income\":7.0}"}});
  EXPECT_EQ(compare_run(network, before, now).size(), 1U);
}

}  // namespace
}  // namespace pipetrain
