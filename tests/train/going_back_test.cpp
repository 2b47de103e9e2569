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

}  // namespace
}  // namespace pipetrain
