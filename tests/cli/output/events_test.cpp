#include "cli/output/events.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <iterator>

#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_steps(EventLog& log, int first, int last) {
  for (int step = first; step <= last; ++step) {
    StepReport report;
    report.step = step;
    log.step(report);
  }
}

TEST(EventLog, BeginsAnotherFileWhenOneIsFull) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "events.jsonl";
  {
    EventLog log(path, /*append=*/false, /*most_bytes=*/4000);
    write_steps(log, 1, 60);
  }
  {
    EventLog log(path, /*append=*/true, /*most_bytes=*/4000);
    write_steps(log, 61, 100);
  }
  const std::vector<fs::path> files = event_files(path);
  ASSERT_GE(files.size(), 3U);
  EXPECT_EQ(files[0].filename(), "events.1.jsonl");
  EXPECT_EQ(files.back(), path);
  std::string all;
  for (const fs::path& file : files) {
    EXPECT_LE(fs::file_size(file), 4000U);
    all += content(file);
  }
  std::size_t at = 0;
  for (int step = 1; step <= 100; ++step) {
    at = all.find("\"step\":" + std::to_string(step) + ",", at);
    ASSERT_NE(at, std::string::npos) << step;
  }
}

TEST(EventLog, GoesOnInTheFullFileWhereNoOtherCanBeOpened) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "events.jsonl";
  EventLog log(path, /*append=*/false, /*most_bytes=*/1000);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_NO_THROW(write_steps(log, 1, 20));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  write_steps(log, 21, 22);
  EXPECT_EQ(event_files(path).size(), 1U);
  EXPECT_NE(content(path).find("\"step\":1,"), std::string::npos);
  EXPECT_NE(content(path).find("\"step\":22,"), std::string::npos);
}

TEST(EventLog, OverwritingARunRemovesItsFilesAndNoOther) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "events.jsonl";
  {
    EventLog log(path, false, 1000);
    write_steps(log, 1, 20);
  }
  ASSERT_GE(event_files(path).size(), 3U);
  {
    EventLog log(path);
    write_steps(log, 1, 1);
  }
  EXPECT_EQ(event_files(path).size(), 1U);
  std::ofstream(directory.path() / "events.1.jsonl") << "somebody's own\n";
  { EventLog log(path); }
  EXPECT_EQ(content(directory.path() / "events.1.jsonl"), "somebody's own\n");
}

}  // namespace
}  // namespace pipetrain
