#include "cli/commands/supervise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/clock.h"
#include "base/input_file.h"

namespace pipetrain {
namespace {

// More than a pipe holds, to a reader that does not read.
TEST(Supervise, AThreadThatWaitsForAReader) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    static char bytes[1 << 20];
    ::_exit(::write(STDOUT_FILENO, bytes, sizeof bytes) < 0);
  }
  const std::string file = fmt::format("/proc/{}/syscall", child);
  const double end = steady_seconds() + 20;
  bool is_seen = false, is_readable = true;
  while (!is_seen && is_readable && steady_seconds() < end) {
    const std::optional<std::string> call = read_if_file(file, 4096);
    is_readable = call.has_value();
    is_seen = is_output_wait(call.value_or(""));
    ::usleep(1000);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  if (!is_readable) GTEST_SKIP() << "the kernel does not show " << file;
  EXPECT_TRUE(is_seen);
}

TEST(Supervise, AnotherCallIsNoWaitForAReader) {
  EXPECT_TRUE(is_output_wait(fmt::format("{} 0x2 0x7f00 0x10", SYS_writev)));
  EXPECT_FALSE(is_output_wait(fmt::format("{} 0x2a 0x7f00 0x10", SYS_write)));  // another process
  EXPECT_FALSE(is_output_wait(fmt::format("{} 0x1 0x7f00 0x10", SYS_read)));
  EXPECT_FALSE(is_output_wait("running"));
  EXPECT_FALSE(is_output_wait(""));
}

TEST(Supervise, AThreadThatWaitsForAFile) {
  EXPECT_TRUE(is_disk_wait("12 (device 0) D 1 12 12 0 -1"));
  EXPECT_FALSE(is_disk_wait("12 (device 0) S 1 12 12 0 -1"));
  EXPECT_FALSE(is_disk_wait("12 (a) D (b) R 1 12 12 0 -1"));
  EXPECT_TRUE(is_disk_wait("12 (a) R (b) D 1 12 12 0 -1"));
  EXPECT_FALSE(is_disk_wait(""));
}

}  // namespace
}  // namespace pipetrain
