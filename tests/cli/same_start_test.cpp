// The commit that a run goes on from, beside its checkpoints.
#include "cli/commands/same_start.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "support/temporary_directory.h"
#include "train/commits.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// The state of a run of which each update has added the gradient of one part.
Checkpoint state_after(std::vector<std::int64_t> parts) {
  Checkpoint state;
  state.run.model_fingerprint = std::string(64, 'a');
  state.reason = "every";
  state.step = state.round_start = std::ssize(parts);
  state.total_steps = 40;
  state.batches_per_epoch = 8;
  state.replicas.emplace();
  state.replicas->start = std::string(64, 'b');
  for (const std::int64_t part : parts) {
    state.replicas->parts.push_back({part, 0});
    state.replicas->rates.push_back(0.1);
  }
  state.replicas->next_part = 40;
  return state;
}

class CommitToResumeTest : public ::testing::Test {
 protected:
  CommitToResumeTest() {
    options_.run_dir = (folder_.path() / "run").string();
    ::setenv(CommitSettings::kVariable, ("1:" + commits().string()).c_str(), 1);
  }
  ~CommitToResumeTest() override { ::unsetenv(CommitSettings::kVariable); }

  fs::path commits() const { return folder_.path() / "commits"; }
  fs::path checkpoints() const { return folder_.path() / "run" / "checkpoints"; }
  /// Another start of the processes.
  void commit(const Checkpoint& state) {
    Commits commits(nullptr, {this->commits(), 1}, 0, {}, CommitBy::kProcess0);
    commits.after_step(state.step, [&] { return state; });
  }
  std::int64_t step() {
    const std::optional<FoundCommit> found = commit_to_resume(options_, nullptr);
    return found ? found->state.step : 0;
  }

  TemporaryDirectory folder_;
  Options options_;
};

TEST_F(CommitToResumeTest, GoesOnFromTheCheckpoint) {
  EXPECT_EQ(step(), 0);
  commit(state_after({0, 2, 1, 3}));
  EXPECT_EQ(step(), 4);
  write_checkpoint(checkpoints(), state_after({0, 2}));
  EXPECT_EQ(step(), 4);
  write_checkpoint(checkpoints(), state_after({0, 2, 1, 3, 4}));
  EXPECT_EQ(step(), 0);  // there is nothing newer
}

TEST_F(CommitToResumeTest, ThatTheRunHasNotGoneOnFromDoesNotCount) {
  commit(state_after({0, 2, 1, 3}));
  const fs::path checkpoint = write_checkpoint(checkpoints(), state_after({0, 1})).path;
  EXPECT_EQ(step(), 0);
  // A checkpoint that cannot be read does not cost the commit.
  std::ofstream(checkpoint / "manifest.json") << "damaged";
  EXPECT_EQ(step(), 4);
}

}  // namespace
}  // namespace pipetrain
