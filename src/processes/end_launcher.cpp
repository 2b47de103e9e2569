// Ends a launcher that does not end by itself.
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>
#include <string_view>

#include "base/error.h"
#include "processes/processes.h"

namespace pipetrain {
namespace {

bool is_mpirun(pid_t process) {
  std::array<char, 64> name{};
  const int file = ::open(fmt::format("/proc/{}/comm", process).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t size = read(file, name.data(), name.size());
  close(file);
  const std::string_view text(name.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text == "mpirun\n" || text == "orterun\n" || text == "mpiexec\n";
}

/// In a child process, in which only system calls are allowed.
[[noreturn]] void watch(int launcher, const char* children, int milliseconds) {
  setsid();  // mpirun ends the process groups of its own children
  // Whoever reads the output of this process must not wait for this one.
  syscall(SYS_close_range, 0U, static_cast<unsigned>(launcher) - 1, 0U);
  syscall(SYS_close_range, static_cast<unsigned>(launcher) + 1, ~0U, 0U);
  // It has ended by then all that it can reach, and no other signal ends it.
  pollfd end{launcher, POLLIN, 0};
  if (poll(&end, 1, milliseconds) != 0) _exit(0);
  // Its children, the connections to the hosts, would keep its output open.
  std::array<char, 4'096> list{};
  const int file = ::open(children, O_RDONLY);
  if (read(file, list.data(), list.size() - 1) < 0) list.front() = '\0';
  syscall(SYS_pidfd_send_signal, launcher, SIGKILL, nullptr, 0U);
  pid_t child = 0;
  for (const char letter : list) {
    if (letter >= '0' && letter <= '9') {
      child = 10 * child + (letter - '0');
    } else if (child > 0) {
      kill(child, SIGTERM);
      child = 0;
    }
  }
  _exit(0);
}

}  // namespace

void end_launcher_after(double seconds) {
  const pid_t parent = getppid();
  const int launcher = static_cast<int>(syscall(SYS_pidfd_open, parent, 0U));
  if (launcher < 0) return;
  const std::string children = fmt::format("/proc/{0}/task/{0}/children", parent);
  if (is_mpirun(parent) && getppid() == parent && fork() == 0)
    watch(launcher, children.c_str(), static_cast<int>(1'000 * seconds));
  close(launcher);
}

}  // namespace pipetrain
