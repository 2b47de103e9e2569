#include "processes/process_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/error.h"

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
      const MemoryProbe own = memory_probe();
      const auto place = reinterpret_cast<std::uint64_t>(numbers.data());
      if (write(ends[1], &own, sizeof own) < 0 || write(ends[1], &place, sizeof place) < 0)
        _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    told = read(ends[0], &probe, sizeof probe) == static_cast<ssize_t>(sizeof probe) &&
           read(ends[0], &numbers_address, sizeof numbers_address) ==
               static_cast<ssize_t>(sizeof numbers_address);
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
  bool told = false;
  MemoryProbe probe;
  std::uint64_t numbers_address = 0;
};

TEST(ProcessMemory, IsReadFromAnotherProcess) {
  Neighbor other(std::vector<int>(100'000, 41));
  ASSERT_TRUE(other.told);
  ASSERT_EQ(other.probe.process, other.process);
  if (!can_read(other.probe)) GTEST_SKIP() << "this system lets no process read another's memory";
  std::vector<int> numbers(100'000);
  read_process_memory(other.process, other.numbers_address, numbers.data(),
                      numbers.size() * sizeof(int));
  EXPECT_EQ(numbers, std::vector<int>(100'000, 42));
  other.end();
  try {
    read_process_memory(other.probe.process, other.numbers_address, numbers.data(), sizeof(int));
    FAIL() << "the process has ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(error.what()).find("cannot be read: No such process"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(can_read(other.probe));
}

// In another container the same number is that of another process.
TEST(ProcessMemory, IsThatOfTheRightProcess) {
  MemoryProbe probe = memory_probe();
  if (!can_read(probe)) GTEST_SKIP() << "this system lets no process read memory";
  probe.value += 1;
  EXPECT_FALSE(can_read(probe));
}

}  // namespace
}  // namespace pipetrain
