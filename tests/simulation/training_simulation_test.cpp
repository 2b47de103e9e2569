// Whole runs under simulated threads: loader, stages and the thread that writes checkpoints. A run
// that is stopped, fails or is killed at any moment goes on from its newest checkpoint, and ends
// with the bits of the run that was left alone.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>

#include "onnx_io/builder.h"
#include "pipeline/program/program_cut.h"
#include "simulation/seeds.h"
#include "support/temporary_directory.h"
#include "train/resume.h"
#include "train/trainer.h"

namespace pipetrain::simulation {
namespace {

namespace fs = std::filesystem;

HostTensor layer_weight(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int next = 0;
  for (float& x : out.span<float>()) x = 0.5F * static_cast<float>((++next * 37) % 23 - 11) / 11;
  return out;
}

/// Three layers for 6 inputs and 4 classes.
void write_layers(const fs::path& path) {
  OnnxBuilder builder("layers");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("w1", layer_weight({6, 4}));
  builder.node("MatMul", {"x", "w1"}, {"h1"}, {}, "layer1");
  builder.node("Tanh", {"h1"}, {"t1"}, {}, "tanh1");
  builder.initializer("w2", layer_weight({4, 4}));
  builder.node("MatMul", {"t1", "w2"}, {"h2"}, {}, "layer2");
  builder.node("Tanh", {"h2"}, {"t2"}, {}, "tanh2");
  builder.initializer("w3", layer_weight({4, 4}));
  builder.node("MatMul", {"t2", "w3"}, {"logits"}, {}, "layer3");
  builder.write(path);
}

/// What happens to a run.
struct RunTrouble {
  std::int64_t stop_after = -1;  // requests
  std::int64_t fail_after = -1;  // steps
};

class TroubledObserver final : public TrainingObserver {
 public:
  explicit TroubledObserver(RunTrouble trouble) : trouble_(trouble) {}
  void on_step(const StepReport& report) override {
    losses[report.step] = report.loss;
    switch_point_if_simulated();
    PT_CHECK(trouble_.fail_after-- != 0, kData, "a sample is damaged");
  }
  RunRequests requests() override { return {++asked_ == trouble_.stop_after, false}; }
  std::map<std::int64_t, double> losses;

 private:
  static void switch_point_if_simulated() {
    if (is_simulated()) switch_point();
  }
  RunTrouble trouble_;
  std::atomic<std::int64_t> asked_{0};
};

constexpr int kSteps = 10;  // two epochs
constexpr int kSeeds = 60;  // of which some have a checkpoint before the trouble comes

/// A planned run that is trained again and again.
class TrainedCase {
 public:
  TrainedCase(const fs::path& folder, const std::string& schedule, int stages) : folder_(folder) {
    write_layers(folder_ / "net.onnx");
    config_.model.path = (folder_ / "net.onnx").string();
    config_.data.synthetic_samples = 38;
    config_.pipeline.threads = 1;
    config_.pipeline.profile_cache = false;
    config_.pipeline.pin = false;
    config_.pipeline.schedule = schedule;
    config_.pipeline.micro_batches =
        schedule == "pipedream" || schedule == "pipedream-vertical" ? 0 : 3;
    config_.pipeline.devices = stages;
    for (int s = 1; s < stages; ++s) config_.pipeline.cuts.push_back(s * 6 / stages);
    config_.optimization.batch_size = 8;
    config_.optimization.epochs = 2;
    config_.optimization.optimizer = default_settings(OptimizerKind::kAdam);
    config_.optimization.learning_rate.peak = 0.02;
    network_ = std::make_unique<PlannedNetwork>(plan_network(config_));
    // The run that is left alone, with threads of the system.
    train_from(folder_ / "whole", {});
    expected_losses_ = losses;
    expected_bytes_ = bytes;
  }

  /// Trains from the newest checkpoint in a folder, if there is one.
  void train_from(const fs::path& checkpoints, RunTrouble trouble) {
    const auto found = newest_checkpoint(checkpoints);
    resumed_from = found ? found->checkpoint.step : 0;
    TrainingOptions options;
    PipelineRun run(*network_, found ? first_round(*network_, found->checkpoint) : 0);
    std::optional<ProgramCut> cut;
    if (found) {
      cut = restore(run, found->checkpoint);
      options.resumed = &found->checkpoint;
      options.cut = cut ? &*cut : nullptr;
    }
    options.save.folder = checkpoints;
    options.save.every = SaveEvery::parse("3");
    options.save.run = describe_run(*network_, {}, {});
    TroubledObserver observer(trouble);
    error.clear();
    try {
      train(run, observer, options);
      run.export_model((folder_ / "trained.onnx").string());
      bytes = get_file(folder_ / "trained.onnx");
    } catch (const Error& thrown) {
      error = thrown.message();
    }
    losses = observer.losses;
  }

  /// A run in two or more parts, the first of which gets into trouble.
  void expect_same_end() const {
    EXPECT_EQ(error, "");
    EXPECT_TRUE(bytes == expected_bytes_) << "other weights than those of the whole run";
    for (const auto& [step, loss] : losses)
      EXPECT_EQ(loss, expected_losses_.at(step)) << "step " << step;
    EXPECT_EQ(losses.empty() ? kSteps : losses.rbegin()->first, kSteps);
  }

  std::int64_t last_step() const { return losses.empty() ? 0 : losses.rbegin()->first; }

  std::string error;              // of the last run
  std::int64_t resumed_from = 0;  // its checkpoint; 0: none
  std::map<std::int64_t, double> losses;
  std::string bytes;

 private:
  fs::path folder_;
  RunConfig config_;
  std::unique_ptr<PlannedNetwork> network_;
  std::map<std::int64_t, double> expected_losses_;
  std::string expected_bytes_;
};

class Training : public testing::Test {
 protected:
  // Checkpoints are synced to the disk: of memory that takes no time.
  Training() : folder_(in_memory()) {}
  static fs::path in_memory() {
    if (fs::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
    return {};
  }

  TrainedCase& of(std::uint64_t seed) {
    static const char* const schedules[] = {"1f1b",          "pipedream", "gpipe",
                                            "pipedream-2bw", "zb-h1",     "pipedream-vertical"};
    const std::string schedule = schedules[seed % 6];
    const int stages = 2 + static_cast<int>(seed / 6 % 2);
    auto& chosen = cases_[{schedule, stages}];
    if (!chosen) {
      const fs::path folder = folder_ / fmt::format("{}-{}", schedule, stages);
      fs::create_directory(folder);
      chosen = std::make_unique<TrainedCase>(folder, schedule, stages);
    }
    return *chosen;
  }
  fs::path fresh_checkpoints() const {
    fs::remove_all(folder_ / "checkpoints");
    return folder_ / "checkpoints";
  }

 private:
  struct Folder {
    explicit Folder(const fs::path&) {}
    TemporaryDirectory directory;
    fs::path operator/(const std::string& name) const { return directory / name; }
  };
  Folder folder_;
  std::map<std::pair<std::string, int>, std::unique_ptr<TrainedCase>> cases_;
};

TEST_F(Training, ThatIsStoppedGoesOnAsIfItHadNotBeen) {
  under_seeds(kSeeds, [&](std::uint64_t seed) {
    TrainedCase& training = of(seed);
    const fs::path checkpoints = fresh_checkpoints();
    const Outcome first = simulate(seed, {.switches_per_stop = 500}, [&] {
      training.train_from(checkpoints, {.stop_after = static_cast<std::int64_t>(1 + draw(kSteps))});
    });
    EXPECT_EQ(training.error, "");
    const std::int64_t stopped = training.last_step();
    Outcome second = simulate(seed + 1, {.switches_per_stop = 500},
                              [&] { training.train_from(checkpoints, {}); });
    EXPECT_EQ(training.resumed_from, stopped);
    training.expect_same_end();
    second.switches += first.switches;
    return second;
  });
}

TEST_F(Training, ThatFailsEndsWithItsErrorAndGoesOn) {
  int runs = 0, resumed = 0;
  under_seeds(kSeeds, [&](std::uint64_t seed) {
    TrainedCase& training = of(seed);
    const fs::path checkpoints = fresh_checkpoints();
    const Outcome first = simulate(seed, {.switches_per_stop = 500}, [&] {
      training.train_from(checkpoints, {.fail_after = static_cast<std::int64_t>(draw(kSteps))});
    });
    EXPECT_EQ(training.error, "a sample is damaged");
    Outcome second = simulate(seed + 1, {.switches_per_stop = 500},
                              [&] { training.train_from(checkpoints, {}); });
    training.expect_same_end();
    ++runs;
    resumed += training.resumed_from > 0 ? 1 : 0;
    second.switches += first.switches;
    return second;
  });
  std::printf("%d of them had a checkpoint\n", resumed);
  EXPECT_TRUE(resumed > 0 || runs < kSeeds);
}

TEST_F(Training, ThatIsKilledGoesOnFromItsNewestCheckpoint) {
  int runs = 0, killed = 0, resumed = 0;
  under_seeds(kSeeds, [&](std::uint64_t seed) {
    TrainedCase& training = of(seed);
    const fs::path checkpoints = fresh_checkpoints();
    const std::uint64_t switches = 1 + seed * 2'654'435'761 % 4'000;
    const pid_t child = ::fork();
    if (child == 0) {
      simulate(seed, {.killed_after = switches}, [&] { training.train_from(checkpoints, {}); });
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    killed += code == kKilled ? 1 : 0;
    EXPECT_TRUE(code == kKilled || code == 0) << code;
    if (fs::exists(checkpoints)) delete_unfinished(checkpoints);
    const Outcome outcome = simulate(seed + 1, {}, [&] { training.train_from(checkpoints, {}); });
    training.expect_same_end();
    ++runs;
    resumed += code == kKilled && training.resumed_from > 0 ? 1 : 0;
    return outcome;
  });
  std::printf("%d of them were killed, %d with a checkpoint\n", killed, resumed);
  EXPECT_TRUE(resumed > 0 || runs < kSeeds);
}

}  // namespace
}  // namespace pipetrain::simulation
