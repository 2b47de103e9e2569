#include "processes/process_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace pipetrain {
namespace {

/// A process that tells where its numbers are and then waits; ended with this object.
class Neighbor {
 public:
  explicit Neighbor(std::vector<int> numbers) {
    int ends[2] = {};
    if (pipe(ends) != 0) return;
    process = fork();
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int& number : numbers) number += 1;
      const auto place = reinterpret_cast<std::uint64_t>(numbers.data());
      if (write(ends[1], &place, sizeof place) < 0) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    if (read(ends[0], &address, sizeof address) != static_cast<ssize_t>(sizeof address))
      address = 0;
    close(ends[0]);
  }
  void end() {
    if (process <= 0) return;
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    process = 0;
  }
  ~Neighbor() { end(); }

  pid_t process = 0;
  std::uint64_t address = 0;  // of its numbers
};

TEST(ProcessMemory, IsReadFromAnotherProcess) {
  Neighbor other(std::vector<int>(100'000, 41));
  ASSERT_NE(other.address, 0U);
  const pid_t process = other.process;
  std::vector<int> numbers(100'000);
  const int error =
      read_process_memory(process, other.address, numbers.data(), numbers.size() * sizeof(int));
  if (error == EPERM || error == ENOSYS)
    GTEST_SKIP() << "this system lets no process read another's memory";
  ASSERT_EQ(error, 0);
  EXPECT_EQ(numbers, std::vector<int>(100'000, 42));
  EXPECT_EQ(read_process_memory(process, 8, numbers.data(), sizeof(int)), EFAULT);
  other.end();
  EXPECT_EQ(read_process_memory(process, other.address, numbers.data(), sizeof(int)), ESRCH);
}

}  // namespace
}  // namespace pipetrain
