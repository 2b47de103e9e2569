// Power fails at any moment of saving checkpoints: whatever is left of what was not synced, every
// checkpoint that was reported as saved is read back whole, or a newer one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>

#include "base/error.h"
#include "simulation/recorded_files.h"
#include "support/temporary_directory.h"
#include "train/checkpoint.h"

namespace pipetrain::simulation {
namespace {

namespace fs = std::filesystem;
using Fate = RecordedFiles::Fate;

HostTensor numbers(std::int64_t count, float first) {
  HostTensor out(TensorType{DType::kFloat32, Shape{count}});
  for (float& x : out.span<float>()) x = first++;
  return out;
}

/// What three stages remember after a step; `version`: of a step that is trained again.
Checkpoint checkpoint_of(std::int64_t step, int version = 0) {
  Checkpoint checkpoint;
  checkpoint.reason = "every";
  checkpoint.step = checkpoint.round_start = step;
  checkpoint.total_steps = 100;
  checkpoint.batches_per_epoch = 10;
  checkpoint.learning_rate = 0.1;
  checkpoint.cuts = {2, 4};
  for (int stage = 0; stage < 3; ++stage) {
    const auto first = static_cast<float>(1'000 * step + 100 * stage + version);
    checkpoint.weights[fmt::format("w{}", stage)] = numbers(40 + 10 * stage, first);
    checkpoint.optimizer[fmt::format("mean/w{}", stage)] = numbers(40 + 10 * stage, -first);
  }
  if (step % 2 == 0) checkpoint.best = BestResult{step, 0.5};
  return checkpoint;
}

bool are_equal(const NamedTensors& a, const NamedTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    const auto p = x.second.template span<float>(), q = y.second.template span<float>();
    return x.first == y.first && std::equal(p.begin(), p.end(), q.begin(), q.end());
  });
}
bool are_equal(const Checkpoint& a, const Checkpoint& b) {
  return a.step == b.step && are_equal(a.weights, b.weights) && are_equal(a.optimizer, b.optimizer);
}

/// A run that saves checkpoints, and when each was promised.
class SavedRun {
 public:
  /// `exchanges`: whether the file system can exchange directories.
  explicit SavedRun(const std::vector<Checkpoint>& checkpoints, bool exchanges = true)
      : files_(disk(), exchanges), checkpoints_(checkpoints) {}

  void save(int keep) {
    const fs::path folder = memory_ / "disk" / "runs" / "one" / "checkpoints";
    for (const Checkpoint& checkpoint : checkpoints_) {
      begun_.push_back(files_.operations());
      write_checkpoint(folder, checkpoint);
      promised_.push_back(files_.operations());
      delete_old_checkpoints(folder, keep, {}, checkpoint.step);
    }
    files_.stop();
  }

  /// Fails at every point, with what is not promised lost, kept, cut or any of that.
  void fail_everywhere(int random_states) {
    const std::size_t end = files_.operations();
    for (std::size_t point = 0; point <= end; ++point) {
      const std::vector<std::size_t> open = files_.unpromised(point);
      check(point, [](std::size_t) { return Fate::kLost; });
      check(point, [](std::size_t) { return Fate::kKept; });
      check(point, [](std::size_t) { return Fate::kCut; });
      for (const std::size_t one : open) {
        check(point, [&](std::size_t i) { return i == one ? Fate::kLost : Fate::kKept; });
        check(point, [&](std::size_t i) { return i == one ? Fate::kKept : Fate::kLost; });
      }
      for (int k = 0; k < random_states; ++k) {
        std::map<std::size_t, Fate> fates;
        for (const std::size_t one : open) fates[one] = static_cast<Fate>(random_() % 3);
        check(point, [&](std::size_t i) { return fates.at(i); });
      }
      if (testing::Test::HasFailure()) return;
    }
    std::printf("%zu crash points, %d states\n", end + 1, states_);
  }

 private:
  fs::path disk() const {
    fs::create_directory(memory_ / "disk");
    return memory_ / "disk";
  }
  void check(std::size_t point, const std::function<Fate(std::size_t)>& fate) {
    ++states_;
    const fs::path left = memory_ / "left";
    fs::remove_all(left);
    files_.leave(point, fate, left);
    const fs::path folder = left / "runs" / "one" / "checkpoints";
    // Those that may be the newest: begun, and not older than the newest that is promised.
    std::size_t first = 0, last = 0;
    while (last < begun_.size() && begun_[last] < point) ++last;
    while (first < promised_.size() && promised_[first] <= point) ++first;
    const auto is_one = [&](const Checkpoint& found) {
      for (std::size_t k = first > 0 ? first - 1 : 0; k < last; ++k) {
        if (are_equal(found, checkpoints_[k])) return true;
      }
      return false;
    };
    std::string problem;
    try {
      const auto found = newest_checkpoint(folder);
      if (!found && first > 0) problem = "no checkpoint is left";
      if (found && !is_one(found->checkpoint))
        problem =
            fmt::format("{} is read, which is none of those", found->path.filename().string());
      if (first == last && first > 0) {  // between two saves
        const FoundCheckpoint latest = find_checkpoint(folder / "latest");
        if (!is_one(latest.checkpoint)) problem = "latest names another checkpoint";
      }
    } catch (const Error& error) {
      problem = error.message();
    }
    if (problem.empty()) return;
    std::string what;
    for (const std::size_t i : files_.unpromised(point)) {
      static const char* const words[] = {"lost", "kept", "cut"};
      what += fmt::format("\n  {} {}", words[static_cast<int>(fate(i))], files_.describe(i));
    }
    ADD_FAILURE() << problem << "; power failed after operation " << point << " of "
                  << files_.operations() << ", " << first << " of " << last
                  << " checkpoints were saved; of what was not synced:" << what;
  }

  struct Memory {
    Memory() {
      if (fs::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
    }
  };
  Memory first_;
  TemporaryDirectory memory_;
  RecordedFiles files_;
  std::vector<Checkpoint> checkpoints_;
  std::vector<std::size_t> begun_, promised_;
  std::mt19937_64 random_{1};
  int states_ = 0;
};

int random_states(int in_a_test_run) {
  const char* text = std::getenv("PIPETRAIN_CRASH_STATES");
  return text ? std::atoi(text) : in_a_test_run;
}

TEST(PowerLoss, LeavesEveryCheckpointThatWasSaved) {
  SavedRun run({checkpoint_of(10), checkpoint_of(20), checkpoint_of(30)});
  run.save(/*keep=*/3);
  run.fail_everywhere(random_states(6));
}

TEST(PowerLoss, WhileOldCheckpointsAreDeletedLeavesTheNewest) {
  SavedRun run({checkpoint_of(10), checkpoint_of(20), checkpoint_of(30), checkpoint_of(40)});
  run.save(/*keep=*/1);
  run.fail_everywhere(random_states(6));
}

// A run that went back to an older checkpoint comes to the same step again.
TEST(PowerLoss, WhileACheckpointIsReplacedLeavesOneOfTheTwo) {
  SavedRun run({checkpoint_of(10), checkpoint_of(10, 1), checkpoint_of(10, 2)});
  run.save(/*keep=*/3);
  run.fail_everywhere(random_states(6));
}

TEST(PowerLoss, WhereDirectoriesCannotBeExchangedLeavesOneOfTheTwo) {
  SavedRun run({checkpoint_of(10), checkpoint_of(10, 1), checkpoint_of(10, 2)},
               /*exchanges=*/false);
  run.save(/*keep=*/3);
  run.fail_everywhere(random_states(6));
}

}  // namespace
}  // namespace pipetrain::simulation
