#include "train/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "pipeline/runtime/last_instructions.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

TEST(Signals, LeaveTheErrorNumberOfTheInterruptedCode) {
  const TemporaryDirectory folder;
  const pid_t child = ::fork();
  if (child == 0) {
    // A folder that does not exist: the file cannot be opened.
    dump_last_instructions_to(folder.path() / "missing" / "instructions.txt");
    const Signals signals;
    errno = E2BIG;
    ::raise(SIGUSR2);
    ::_exit(errno == E2BIG ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace pipetrain
