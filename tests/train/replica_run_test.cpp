// Runs whose replicas do not wait for each other, as threads and in several processes, which are
// threads of the test that only exchange messages: what comes out can be computed again.
#include "train/replica_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "support/memory_processes.h"
#include "support/process_runs.h"
#include "support/temporary_directory.h"
#include "train/part_worker.h"
#include "train/replay.h"
#include "train/replica_updates.h"
#include "train/resume.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

HostTensor replica_tensor(Shape shape, float scale) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int next = 0;
  for (float& x : out.span<float>())
    x = scale < 0 ? -scale : scale * static_cast<float>((++next * 37) % 23 - 11) / 11;
  return out;
}

/// Two layers with BatchNorm and, if asked for, Dropout between them, for 6 inputs and 4 classes.
void write_replica_network(const std::filesystem::path& path, bool drops = true) {
  OnnxBuilder builder("layers");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w1", replica_tensor({6, 8}, 0.7F));
  builder.initializer("w2", replica_tensor({8, 4}, 0.7F));
  for (const char* name : {"scale", "var"}) builder.initializer(name, replica_tensor({8}, -1));
  for (const char* name : {"bias", "mean"}) builder.initializer(name, replica_tensor({8}, 0));
  builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "l1");
  builder.node("BatchNormalization", {"h", "scale", "bias", "mean", "var"}, {"n"}, {}, "norm");
  builder.node("Tanh", {"n"}, {"t"}, {}, "act");
  if (drops) builder.node("Dropout", {"t"}, {"d"}, {}, "drop");
  builder.node("MatMul", {drops ? "d" : "t", "w2"}, {"logits"}, {}, "l2");
  builder.write(path);
}

/// Makes some replicas come late: an update waits now and then.
struct ReplicaObserver final : TrainingObserver {
  void on_step(const StepReport& report) override {
    if (report.step % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    parts.insert(parts.end(), report.parts.begin(), report.parts.end());
    losses.push_back(report.loss);
    PT_CHECK(report.step != fail_at, kData, "sample {} is damaged", report.step);
  }
  RunRequests requests() override { return {stops, false}; }
  std::int64_t fail_at = -1;
  bool stops = false;
  std::vector<DataPart> parts;
  std::vector<double> losses;
};

class ReplicaRuns : public testing::Test {
 protected:
  ReplicaRuns() {
    write_replica_network(folder_.path() / "net.onnx");
    config_.model.path = (folder_.path() / "net.onnx").string();
    config_.data.synthetic_samples = 50;
    config_.pipeline.threads = 1;
    config_.pipeline.pin = false;
    config_.pipeline.profile_cache = false;
    config_.pipeline.devices = 3;
    config_.pipeline.replicas = {3};
    config_.optimization.batch_size = 12;
    config_.optimization.epochs = 6;
    config_.optimization.optimizer = default_settings(OptimizerKind::kAdamW);
    config_.optimization.learning_rate.peak = 0.01;
    set_async(4);
  }

  void set_async(int staleness) {
    config_.pipeline.replica_updates = {ReplicaMode::kAsync, staleness, 0, 0};
  }
  void set_backup(int backup) {
    config_.pipeline.replica_updates = {ReplicaMode::kBackup, -1, backup, 0};
  }
  std::filesystem::path checkpoints() const { return folder_.path() / "run"; }

  TrainingOptions options_for(const PlannedNetwork& network) const {
    TrainingOptions options;
    options.save.folder = checkpoints();
    options.save.every = SaveEvery::parse("10");
    options.save.keep = 0;
    options.save.run = describe_run(network, {}, numbers_);
    return options;
  }

  /// Trains and returns the newest checkpoint.
  Checkpoint train_here(ReplicaObserver& observer, const Checkpoint* resumed = nullptr,
                        ProcessGroup* processes = nullptr) {
    PlannedNetwork network = plan_network(config_, RunMode::kTrain, processes);
    PipelineRun run(network, 0, FileWeights::kRelease);
    if (resumed) restore(run, *resumed);
    TrainingOptions options = options_for(network);
    options.resumed = resumed;
    train(run, observer, options);
    return newest_checkpoint(checkpoints())->checkpoint;
  }
  Checkpoint train_here() {
    ReplicaObserver observer;
    return train_here(observer);
  }
  /// In several processes, of which process 0 observes.
  std::vector<std::string> train_in_processes(int count, std::uint64_t seed,
                                              ReplicaObserver& observer, ReplicaObserver& other) {
    test::MemoryWorld world(count, seed);
    return test::in_processes(world, count, [&](ProcessGroup& group) {
      if (group.leads()) {
        train_here(observer, nullptr, &group);
        return;
      }
      PlannedNetwork network = plan_network(config_, RunMode::kTrain, &group);
      PipelineRun run(network, 0, FileWeights::kRelease);
      serve_replicas(run, other);
    });
  }

  Replay replay_of(const Checkpoint& checkpoint) {
    PlannedNetwork network = plan_network(config_);
    PipelineRun run(network);
    return replay(run, checkpoint);
  }
  void expect_error(const std::string& part) {
    try {
      plan_network(config_);
      FAIL() << "not refused: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  TemporaryDirectory folder_;
  RunConfig config_;
  std::vector<Setting> numbers_;  // that the command line records
};

TEST_F(ReplicaRuns, AreComputedAgainFromTheirRecord) {
  for (const int staleness : {2, 7}) {
    set_async(staleness);
    const Checkpoint end = train_here();
    EXPECT_EQ(end.step, 30);  // 50 samples: 12 + 12 + 12 + 12 + 2
    const Replay result = replay_of(end);
    EXPECT_TRUE(result.equal()) << result.different.front();
    EXPECT_EQ(result.updates, 30);
    EXPECT_LE(result.most_versions, staleness + 1);
  }
}

TEST_F(ReplicaRuns, OfBackupWorkersAreComputedAgain) {
  config_.optimization.clip_norm = 0.5;
  config_.optimization.optimizer.average_decay = 0.9;
  set_backup(1);
  const Checkpoint end = train_here();
  EXPECT_EQ(end.replicas->parts.size(), 60U);
  const Replay result = replay_of(end);
  EXPECT_TRUE(result.equal()) << result.different.front();
  EXPECT_EQ(result.most_versions, 1);
}

TEST_F(ReplicaRuns, ObserversSeeTheRecord) {
  ReplicaObserver observer;
  const Checkpoint end = train_here(observer);
  EXPECT_EQ(observer.parts, end.replicas->parts);
}

TEST_F(ReplicaRuns, KeepNoOptimizerStateBesideThatOfTheRun) {
  PlannedNetwork network = plan_network(config_);
  const PipelineRun run(network);
  EXPECT_GT(run.runtime().memory(0).optimizer, 0U);
  const PartWorker worker(run, /*replica=*/1, /*place=*/1, /*places=*/3);
  EXPECT_GT(worker.memory().parameters, 0U);
  EXPECT_EQ(worker.memory().optimizer, 0U);
}

/// One replica with whole mini-batches is the synchronous run, but for the running statistics,
/// whose rounding differs.
TEST_F(ReplicaRuns, OfOneReplicaAreTheSynchronousRun) {
  config_.pipeline.replicas = {1};
  config_.pipeline.devices = 1;
  config_.model.batch_norm = BatchNormMode::kFrozen;
  set_async(0);
  const Checkpoint alone = train_here();
  std::filesystem::remove_all(checkpoints());
  config_.pipeline.replica_updates = {};
  config_.pipeline.replicas = {};
  const Checkpoint synchronous = train_here();
  ASSERT_EQ(alone.weights.size(), synchronous.weights.size());
  for (const auto& [name, tensor] : synchronous.weights) {
    EXPECT_EQ(
        std::memcmp(alone.weights.at(name).view().data, tensor.view().data, tensor.type().bytes()),
        0)
        << name;
  }
}

/// Parts of 4, 4 and 2 samples are a synchronous step of 10.
TEST_F(ReplicaRuns, PartsCountByTheirSamples) {
  write_replica_network(folder_.path() / "net.onnx", /*drops=*/false);
  config_.data.synthetic_samples = 10;
  config_.optimization.epochs = 10;
  config_.optimization.optimizer = default_settings(OptimizerKind::kSgd);
  config_.optimization.learning_rate.peak = 0.1;
  config_.model.batch_norm = BatchNormMode::kFrozen;
  set_backup(0);
  ReplicaObserver apart, together;
  const Checkpoint parts = train_here(apart);
  EXPECT_EQ(parts.step, 10);
  EXPECT_EQ(parts.replicas->parts.size(), 30U);
  std::filesystem::remove_all(checkpoints());
  config_.pipeline.replica_updates = {};
  config_.pipeline.replicas = {};
  config_.pipeline.devices = 1;
  config_.optimization.batch_size = 10;
  const Checkpoint whole = train_here(together);
  ASSERT_EQ(parts.weights.size(), whole.weights.size());
  for (const auto& [name, tensor] : whole.weights) {
    const std::vector<double> expected = tensor.to_doubles();
    const std::vector<double> found = parts.weights.at(name).to_doubles();
    ASSERT_EQ(found.size(), expected.size()) << name;
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-4) << name;
  }
  ASSERT_EQ(apart.losses.size(), together.losses.size());
  for (std::size_t i = 0; i < together.losses.size(); ++i)
    EXPECT_NEAR(apart.losses[i], together.losses[i], 1e-4);
}

TEST_F(ReplicaRuns, ADamagedRecordIsNoticed) {
  Checkpoint end = train_here();
  const std::vector<DataPart> parts = end.replicas->parts;
  const auto is_equal = [&] {
    const bool equal = replay_of(end).equal();
    end.replicas->parts = parts;
    return equal;
  };
  std::swap(end.replicas->parts[3].number, end.replicas->parts[4].number);
  EXPECT_FALSE(is_equal());
  std::size_t stale = 0;  // a gradient of older weights
  while (end.replicas->parts[stale].version == static_cast<std::int64_t>(stale)) ++stale;
  ++end.replicas->parts[stale].version;
  EXPECT_FALSE(is_equal());
  end.replicas->rates[5] *= 1.001;
  EXPECT_FALSE(is_equal());
  end.replicas->parts[5] = end.replicas->parts[4];
  EXPECT_THROW(is_equal(), Error) << "a part cannot be used twice";
}

TEST_F(ReplicaRuns, AFlippedWeightIsNoticed) {
  Checkpoint end = train_here();
  end.weights.at("w1").span<float>()[7] *= 1.0000001F;
  const Replay result = replay_of(end);
  ASSERT_EQ(result.different.size(), 1U);
  EXPECT_TRUE(result.different[0].starts_with("w1 "));
}

TEST_F(ReplicaRuns, GoOnFromACheckpoint) {
  for (const bool backup : {false, true}) {
    backup ? set_backup(1) : set_async(4);
    std::filesystem::remove_all(checkpoints());
    train_here();
    const Checkpoint middle = read_checkpoint(checkpoints() / checkpoint_name(20));
    EXPECT_FALSE(middle.replicas->unfinished.empty());
    ReplicaObserver observer;
    const Checkpoint end = train_here(observer, &middle);
    EXPECT_EQ(end.step, 30);
    EXPECT_EQ(end.replicas->changed_at, 0);
    EXPECT_TRUE(replay_of(end).equal());
    if (backup) continue;
    std::vector<std::int64_t> numbers;
    for (const DataPart& part : end.replicas->parts) numbers.push_back(part.number);
    std::ranges::sort(numbers);
    for (std::int64_t i = 0; i < 30; ++i) EXPECT_EQ(numbers[static_cast<std::size_t>(i)], i);
  }
}

TEST_F(ReplicaRuns, ThatAreResumedWithOtherSettingsAreNotComputedAgain) {
  train_here();
  const Checkpoint middle = read_checkpoint(checkpoints() / checkpoint_name(20));
  config_.pipeline.micro_batches = 2;
  ReplicaObserver observer;
  const Checkpoint end = train_here(observer, &middle);
  EXPECT_EQ(end.replicas->changed_at, 20);
  EXPECT_THROW(replay_of(end), Error);
}

// Earlier versions recorded no largest values where inputs have different ones.
TEST_F(ReplicaRuns, OfAnEarlierVersionKeepTheSettingsItDidNotRecord) {
  numbers_ = {{"normalize", "max"}};
  train_here();
  const Checkpoint middle = read_checkpoint(checkpoints() / checkpoint_name(20));
  numbers_ = {{"normalize", "max:{\"age\":90.0,\"income\":7.0}"}};
  ReplicaObserver observer;
  EXPECT_EQ(train_here(observer, &middle).replicas->changed_at, 0);
}

TEST_F(ReplicaRuns, InProcessesAreComputedAgain) {
  for (const bool backup : {false, true}) {
    for (const int count : {2, 3}) {
      backup ? set_backup(1) : set_async(3);
      ReplicaObserver observer, other;
      for (const std::string& error : train_in_processes(count, 7U + count, observer, other))
        EXPECT_EQ(error, "");
      const Checkpoint end = newest_checkpoint(checkpoints())->checkpoint;
      EXPECT_EQ(end.step, 30);
      const Replay result = replay_of(end);
      EXPECT_TRUE(result.equal()) << result.different.front();
    }
  }
}

TEST_F(ReplicaRuns, AnyProcessMayBeAskedToStop) {
  config_.optimization.epochs = 1'000'000;
  ReplicaObserver observer, other;
  other.stops = true;
  for (const std::string& error : train_in_processes(2, 3, observer, other)) EXPECT_EQ(error, "");
  const Checkpoint end = newest_checkpoint(checkpoints())->checkpoint;
  EXPECT_EQ(end.reason, "signal");
  EXPECT_TRUE(replay_of(end).equal());
}

TEST_F(ReplicaRuns, AFailureEndsAllProcesses) {
  ReplicaObserver observer, other;
  observer.fail_at = 5;
  const std::vector<std::string> errors = train_in_processes(2, 5, observer, other);
  EXPECT_NE(errors[0].find("sample 5 is damaged"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("sample 5 is damaged"), std::string::npos) << errors[1];
}

TEST_F(ReplicaRuns, OtherSettingsAreRefused) {
  set_async(1);
  expect_error("staleness");
  set_backup(3);
  expect_error("backup workers");
  set_backup(1);
  config_.optimization.batch_size = 13;
  expect_error("batch-size");
  config_.optimization.batch_size = 12;
  config_.pipeline.shard_optimizer = true;
  expect_error("shard-optimizer");
  config_.pipeline.shard_optimizer = false;
  config_.pipeline.replicas = {2, 1};
  expect_error("one stage");
  config_.pipeline.replicas = {3};
  config_.pipeline.schedule = "pipedream";
  expect_error("synchronous");
}

}  // namespace
}  // namespace pipetrain
