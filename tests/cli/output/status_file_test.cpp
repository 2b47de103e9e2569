// The status file: what `launch` reads in that of processes that have ended.
#include "cli/output/status_file.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

std::string status_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

StepReport step_of_status(std::int64_t step) {
  StepReport report;
  report.step = step;
  report.total_steps = 100;
  return report;
}

TEST(StatusFile, SaysWhereKilledProcessesHaveBegun) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "status.json";
  StatusFile status(path.string());
  status.step(step_of_status(41));
  const ProcessEnd end = end_of_launcher(SIGKILL, end_in_status(status_text(path)));
  EXPECT_TRUE(end.trained);
  EXPECT_EQ(end.steps, 41);
  EXPECT_EQ(end.from_step, 40);
}

TEST(StatusFile, SaysThatTheFirstStepHasFailed) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "status.json";
  StatusFile status(path.string(), step_of_status(50));
  status.begin();
  EXPECT_EQ(end_in_status(status_text(path)).code, -1);
  for (const bool has_ended : {false, true}) {
    if (has_ended) status.end("error", 7);
    const ProcessEnd end = end_of_launcher(SIGKILL, end_in_status(status_text(path)));
    EXPECT_TRUE(end.trained);
    EXPECT_EQ(end.steps, 50);
    EXPECT_EQ(end.from_step, 50);
  }
  status.step(step_of_status(51));  // is written at once
  EXPECT_EQ(end_in_status(status_text(path)).steps, 51);
  EXPECT_EQ(end_in_status(status_text(path)).from_step, 50);
}

TEST(StatusFile, SaysHowProcessesHaveEnded) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "status.json";
  StatusFile status(path.string());
  status.step(step_of_status(1));
  status.step(step_of_status(2));
  status.end("interrupted", 143, 1);
  const ReportedEnd end = end_in_status(status_text(path));
  EXPECT_EQ(end.code, 143);
  EXPECT_EQ(end.steps, 2);
  EXPECT_EQ(end.from_step, 0);
  EXPECT_EQ(end.failed_process, 1);
  EXPECT_TRUE(end.is_interrupted);
}

TEST(StatusFile, IsWrittenAgainAfterAWriteThatFailed) {
  const TemporaryDirectory parent;
  const std::filesystem::path folder = parent / "status", away = parent / "away";
  std::filesystem::create_directory(folder);
  StatusFile status((folder / "status.json").string());
  std::filesystem::rename(folder, away);
  status.step(step_of_status(1));
  std::filesystem::rename(away, folder);
  status.end("ok", 0);
  EXPECT_EQ(end_in_status(status_text(folder / "status.json")).code, 0);
}

TEST(StatusFile, WithoutStepsSaysNothingOfThem) {
  for (const char* text : {"", "{", "[]", "{}", R"({"step": "1", "first_step": 1.5})"}) {
    const ReportedEnd end = end_in_status(text);
    EXPECT_EQ(end.code, -1) << text;
    EXPECT_EQ(end.steps, 0) << text;
    EXPECT_EQ(end.from_step, 0) << text;
  }
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "status.json";
  StatusFile(path.string()).end("error", 3);
  EXPECT_EQ(end_in_status(status_text(path)).code, 3);
  EXPECT_EQ(end_in_status(status_text(path)).from_step, 0);
}

TEST(StatusFile, StepsBeforeAResumeAreNotOfThisProcess) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "status.json";
  StatusFile(path.string(), step_of_status(50)).end("error", 4);
  EXPECT_NE(status_text(path).find("\"step\": 50,"), std::string::npos);
  const ProcessEnd end = end_of_launcher(SIGKILL, end_in_status(status_text(path)));
  EXPECT_FALSE(end.trained);
  EXPECT_EQ(end.steps, 0);
  EXPECT_EQ(end.from_step, 0);
}

}  // namespace
}  // namespace pipetrain
