// A run that goes on from an earlier checkpoint of its folder: what becomes of the later ones.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "support/temporary_directory.h"
#include "train/checkpoint.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

Checkpoint checkpoint_after(std::int64_t step, std::optional<std::int64_t> best = {}) {
  Checkpoint out;
  out.reason = "every";
  out.step = out.round_start = step;
  out.total_steps = 40;
  out.batches_per_epoch = 8;
  out.updates = {step};
  if (best) out.best = BestResult{*best, 0.25};
  return out;
}

TEST(GoingBack, TheNewestMayHaveBeenAboutToBeReplaced) {
  const TemporaryDirectory folder;
  for (const std::int64_t step : {3, 4}) write_checkpoint(folder.path(), checkpoint_after(step));
  fs::rename(folder / "step-000004", folder / ".step-000004.123.replaced");
  const std::optional<FoundCheckpoint> found = newest_checkpoint(folder.path());
  EXPECT_EQ(found->checkpoint.step, 4);
  EXPECT_NO_THROW(check_may_go_back(found->path));
  delete_unfinished(folder.path());
  EXPECT_NO_THROW(give_up_steps_after(found->path));  // it has its own name again
  EXPECT_EQ(newest_step(folder.path()), 4);
}

TEST(GoingBack, GivesLaterStepsUpAtOnce) {
  const TemporaryDirectory folder;
  for (const std::int64_t step : {3, 4, 7}) write_checkpoint(folder.path(), checkpoint_after(step));
  const fs::path latest = folder / "latest";
  const std::string before = get_file(latest);
  give_up_steps_after(folder / "step-000007");  // the newest: nothing changes
  EXPECT_EQ(get_file(latest), before);
  const auto go_back_to = [&](const char* name) {
    give_up_steps_after(folder / name);
    fs::last_write_time(latest, fs::last_write_time(latest) + std::chrono::seconds(1));
  };
  go_back_to("step-000004");
  EXPECT_EQ(newest_step(folder.path()), 4);
  EXPECT_EQ(find_checkpoint(latest).checkpoint.step, 4);
  go_back_to("step-000007");
  EXPECT_EQ(newest_step(folder.path()), 7);
}

TEST(GoingBack, WorksFromInsideTheFolder) {
  const TemporaryDirectory run;
  const fs::path folder = run / "checkpoints";
  for (const std::int64_t step : {3, 7}) write_checkpoint(folder, checkpoint_after(step, 3));
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  for (const char* name : {"step-000003", "step-000003/", "./step-000003", "best", "step-000003/."})
    EXPECT_TRUE(fs::equivalent(find_checkpoint(name).path.parent_path().parent_path(), run.path()))
        << name;
  give_up_steps_after(find_checkpoint("step-000003").path);
  fs::current_path(before);
  EXPECT_EQ(find_checkpoint(folder / "latest").checkpoint.step, 3);
}

TEST(GoingBack, NeedsACheckpointThatIsNamedByItsStep) {
  const TemporaryDirectory folder;
  for (const std::int64_t step : {3, 7}) write_checkpoint(folder.path(), checkpoint_after(step));
  EXPECT_NO_THROW(check_may_go_back(folder / "step-000003"));
  EXPECT_NO_THROW(check_may_go_back(folder / "step-000007"));
  fs::rename(folder / "step-000003", folder / "good");
  const std::string before = get_file(folder / "latest");
  EXPECT_THROW(check_may_go_back(folder / "good"), Error);
  EXPECT_THROW(give_up_steps_after(folder / "good"), Error);
  EXPECT_EQ(get_file(folder / "latest"), before);
  fs::remove_all(folder / "step-000007");
  EXPECT_NO_THROW(check_may_go_back(folder / "good"));  // there is none to give up
}

TEST(GoingBack, TakesTheBestBack) {
  const TemporaryDirectory folder;
  const auto write = [&](std::int64_t step, std::optional<std::int64_t> best) {
    write_checkpoint(folder.path(), checkpoint_after(step, best));
  };
  const auto best = [&] { return find_checkpoint(folder / "best").checkpoint.step; };
  write(4, 4);
  write(6, 4);
  EXPECT_EQ(best(), 4);
  write(7, 7);
  EXPECT_EQ(best(), 7);
  write(5, 4);  // the run has gone back to step 4
  EXPECT_EQ(best(), 4);
  write(2, {});  // and to step 1, before there was one
  EXPECT_FALSE(fs::exists(folder / "best"));
  write(3, 2);
  EXPECT_EQ(best(), 2);
  write(4, 1);  // of which no checkpoint was written
  EXPECT_FALSE(fs::exists(folder / "best"));
}

/// Steps 3, 4, 6 and 7, of which 6 was the best; then the run goes back to 4.
void save_and_go_back(const TemporaryDirectory& folder) {
  for (const std::int64_t step : {3, 4}) write_checkpoint(folder.path(), checkpoint_after(step, 3));
  for (const std::int64_t step : {6, 7}) write_checkpoint(folder.path(), checkpoint_after(step, 6));
  give_up_steps_after(folder / "step-000004");
  const fs::path latest = folder / "latest";
  fs::last_write_time(latest, fs::last_write_time(latest) + std::chrono::seconds(1));
}

TEST(GoingBack, StepsThatWereGivenUpAreNotThoseOfTheRunLater) {
  const TemporaryDirectory folder;
  save_and_go_back(folder);
  write_checkpoint(folder.path(), checkpoint_after(8, 3));
  EXPECT_EQ(newest_step(folder.path()), 8);
  EXPECT_TRUE(fs::exists(folder / "given-up-step-000006" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder / "given-up-step-000007" / "manifest.json"));
  // Without the newest one the run goes on from the one before, not from what it has given up.
  fs::remove(folder / "step-000008" / "manifest.json");
  EXPECT_EQ(newest_checkpoint(folder.path())->checkpoint.step, 4);
}

TEST(GoingBack, DeletesStepsThatWereGivenUpInsteadOfItsOwn) {
  const TemporaryDirectory folder;
  save_and_go_back(folder);
  write_checkpoint(folder.path(), checkpoint_after(8, 3));
  EXPECT_TRUE(delete_old_checkpoints(folder.path(), 0, 3, 8).empty());
  EXPECT_EQ(delete_old_checkpoints(folder.path(), 2, 3, 8).size(), 2U);
  for (const char* name : {"step-000003", "step-000004", "step-000008"})
    EXPECT_TRUE(fs::exists(folder / name)) << name;
  for (const char* name : {"step-000006", "step-000007", "given-up-step-000006"})
    EXPECT_FALSE(fs::exists(folder / name)) << name;
}

// The new best step 6 is in memory, when the checkpoint of step 8 is written.
TEST(GoingBack, ABestStepThatWasGivenUpIsNotTheOneOfThatNumberLater) {
  const TemporaryDirectory folder;
  save_and_go_back(folder);
  write_checkpoint(folder.path(), checkpoint_after(8, 6));
  EXPECT_FALSE(fs::exists(folder / "best"));
  delete_old_checkpoints(folder.path(), 1, 6, 8);
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 1U);
}

TEST(GoingBack, DamagedCheckpointsDoNotBringGivenUpOnesBack) {
  const TemporaryDirectory folder;
  save_and_go_back(folder);
  for (const char* name : {"step-000003", "step-000004"})
    fs::remove(folder / name / "manifest.json");
  EXPECT_THROW(newest_checkpoint(folder.path()), Error);
  for (const char* name : {"step-000003", "step-000004"}) fs::remove_all(folder / name);
  EXPECT_EQ(newest_checkpoint(folder.path())->checkpoint.step, 7);  // there are no others
  // A run that goes on from there keeps it.
  give_up_steps_after(folder / "step-000007");
  write_checkpoint(folder.path(), checkpoint_after(8, 6));
  EXPECT_TRUE(delete_old_checkpoints(folder.path(), 3, 6, 8).empty());
  for (const char* name : {"step-000006", "step-000007", "step-000008"})
    EXPECT_TRUE(fs::exists(folder / name)) << name;
}

}  // namespace
}  // namespace pipetrain
