// The last instructions of a device, as they are written down when a run hangs or crashes.
#include "pipeline/runtime/last_instructions.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/clock.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

Program program_with_transfers() {
  Program program;
  program.transfers = {
      {.edge = 0, .from_stage = 0, .to_stage = 1, .micro_batch = 4},
      {.edge = 1, .from_stage = 1, .to_stage = 0, .micro_batch = 4, .gradient = true}};
  return program;
}

std::string written(const DeviceLog& log, double now) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  log.write(ends[1], /*device=*/3, now);
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  return text;
}

TEST(LastInstructions, AreWrittenAsInTheTextOfASchedule) {
  const auto log = std::make_unique<DeviceLog>();
  EXPECT_EQ(written(*log, 100), "");
  const Program program = program_with_transfers();
  log->begin_round();
  const auto run = [&](Kind kind, int stage, int micro_batch, int transfer, double begin,
                       double end) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.stage = stage;
    instruction.micro_batch = micro_batch;
    instruction.transfer = transfer;
    log->begin(program, instruction, begin);
    if (end > 0) log->end(end);
  };
  run(Kind::kForward, 0, 4, -1, 90, 90.5);
  run(Kind::kSend, 0, 4, 0, 91, 91.000001);
  run(Kind::kReceive, 0, 4, 1, 92, 92.25);
  run(Kind::kGradientSync, -1, -1, -1, 93, 93.25);
  run(Kind::kUpdate, 0, -1, -1, 94, 0);
  log->wait_for(1, 97.5);
  EXPECT_EQ(written(*log, 100),
            "device 3: round 1, waits for device 1 since 2.500000 s\n"
            "  -10.000000 s  0.500000 s  0F4\n"
            "  -9.000000 s  0.000001 s  0SF4>1\n"
            "  -8.000000 s  0.250000 s  0RB4<1\n"
            "  -7.000000 s  0.250000 s  G\n"
            "  -6.000000 s  not done  0U\n");
  log->wait_for(DeviceLog::kData, 99);
  EXPECT_NE(written(*log, 100).find("waits for data since 1.0"), std::string::npos);
}

TEST(LastInstructions, AreTheLast256) {
  const auto log = std::make_unique<DeviceLog>();
  const Program program;
  for (int m = 0; m < 300; ++m) {
    Instruction instruction;
    instruction.stage = 2;
    instruction.micro_batch = m;
    log->begin(program, instruction, m);
    log->end(m + 0.5);
  }
  std::istringstream lines(written(*log, 300));
  std::string line;
  std::getline(lines, line);
  for (int m = 300 - 256; m < 300; ++m) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_TRUE(line.ends_with("  2F" + std::to_string(m))) << line;
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(LastInstructions, AreWrittenAtACrash) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder.path() / "instructions.txt";
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE}) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (const int number : {SIGSEGV, SIGABRT, SIGFPE}) ::signal(number, SIG_DFL);
      dump_last_instructions_to(file);
      Instruction instruction;
      instruction.stage = 1;
      instruction.micro_batch = 7;
      log_of_device(5).begin_round();
      log_of_device(5).begin(Program(), instruction, steady_seconds());
      ::raise(signal);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), signal);
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    EXPECT_NE(text.str().find("device 5: round 1"), std::string::npos) << text.str();
    EXPECT_NE(text.str().find("not done  1F7\n"), std::string::npos) << text.str();
    std::filesystem::remove(file);
  }
}

}  // namespace
}  // namespace pipetrain
