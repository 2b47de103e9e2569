#include "processes/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMostLine = 1 << 20;  // bytes; longer ones are cut in two
constexpr double kPatience = 0.5;           // seconds, for what is left behind to end by itself

/// Those of this program that run.
std::set<pid_t>& own_children() {
  static std::set<pid_t> children;
  return children;
}

/// Those that this process had before the program started any: a shell that has replaced itself by
/// it leaves it what it had started, such as the tee of `exec pipetrain launch … > >(tee log)`.
std::set<pid_t>& earlier_children() {
  static std::set<pid_t> children;
  return children;
}

std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", process));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

/// A process and all below it, the lowest last.
std::vector<pid_t> tree_of(pid_t process) {
  std::vector<pid_t> tree = {process};
  for (std::size_t i = 0; i < tree.size(); ++i) {
    for (const pid_t child : children_of(tree[i])) tree.push_back(child);
  }
  return tree;
}

/// The children that programs started here have left behind. One that has ended may have left
/// children of its own since they were listed, so they are listed again then.
std::vector<pid_t> left_behind() {
  for (;;) {
    std::vector<pid_t> left = children_of(::getpid());
    std::erase_if(left, [](pid_t process) {
      return own_children().contains(process) || earlier_children().contains(process);
    });
    if (std::erase_if(left, [](pid_t process) {
          return ::waitpid(process, nullptr, WNOHANG) == process;
        }) == 0)
      return left;
  }
}

void close_all(std::array<int, 2>& pipe) {
  for (int& end : pipe) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
}

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

ChildProcess::ChildProcess(const std::vector<std::string>& words,
                           const std::vector<std::string>& unset, OnLine on_line)
    : on_line_(std::move(on_line)) {
  std::array<int, 2> out{-1, -1}, error{-1, -1};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  if (own_children().empty()) {
    const std::vector<pid_t> earlier = children_of(parent);
    earlier_children() = {earlier.begin(), earlier.end()};
  }
  if (::pipe2(out.data(), O_CLOEXEC) == 0 && ::pipe2(error.data(), O_CLOEXEC) == 0)
    process_ = ::fork();
  if (process_ < 0) {
    close_all(out);
    close_all(error);
    PT_FAIL(kResource, "cannot start {}: {}", printable(words.front()), std::strerror(errno));
  }
  if (process_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    std::signal(SIGPIPE, SIG_DFL);
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(error[1], STDERR_FILENO);
    for (const std::string& name : unset) ::unsetenv(name.c_str());
    ::execvp(arguments.front(), arguments.data());
    ::_exit(127);
  }
  own_children().insert(process_);
  handle_ = static_cast<int>(::syscall(SYS_pidfd_open, process_, 0U));
  pipes_ = {out[0], error[0]};
  ::close(out[1]);
  ::close(error[1]);
  for (const int pipe : pipes_) ::fcntl(pipe, F_SETFL, O_NONBLOCK);
}

ChildProcess::~ChildProcess() {
  if (!ended_) kill();
  close_all(pipes_);
  if (handle_ >= 0) ::close(handle_);
}

void ChildProcess::read_from(Stream stream) {
  const auto s = static_cast<std::size_t>(stream);
  std::string& begun = begun_[s];
  std::array<char, 16 << 10> bytes;
  for (;;) {
    const ssize_t count = ::read(pipes_[s], bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // nothing more now
    if (count == 0) {
      ::close(std::exchange(pipes_[s], -1));
      if (!begun.empty()) on_line_(stream, std::exchange(begun, {}));
      return;
    }
    begun.append(bytes.data(), static_cast<std::size_t>(count));
    std::size_t end = 0;
    while ((end = begun.find('\n')) != std::string::npos || begun.size() > kMostLine) {
      const bool whole = end != std::string::npos;
      on_line_(stream, begun.substr(0, whole ? end : kMostLine));
      begun.erase(0, whole ? end + 1 : kMostLine);
    }
  }
}

bool ChildProcess::wait(double until, int wake) {
  while (!ended_) {
    const double left = std::max(0.0, until - steady_seconds());
    std::array<pollfd, 4> events{pollfd{pipes_[0], POLLIN, 0}, pollfd{pipes_[1], POLLIN, 0},
                                 pollfd{handle_, POLLIN, 0}, pollfd{wake, POLLIN, 0}};
    ::poll(events.data(), events.size(), static_cast<int>(std::min(left, 1e6) * 1e3) + 1);
    for (const Stream stream : {Stream::kOut, Stream::kError}) {
      if (pipes_[static_cast<std::size_t>(stream)] >= 0) read_from(stream);
    }
    if (::waitpid(process_, &status_, WNOHANG) == process_) finish();
    if (events[3].revents != 0 || steady_seconds() >= until) break;
  }
  return ended_;
}

/// It has ended: ends what it has left behind, and reads the rest.
void ChildProcess::finish() {
  ended_ = true;
  own_children().erase(process_);
  const double begin = steady_seconds();
  for (std::vector<pid_t> left; !(left = left_behind()).empty(); ::usleep(5'000)) {
    const double waited = steady_seconds() - begin;
    if (waited > 40 * kPatience) break;  // nothing ends a process that waits for its disk
    if (waited < kPatience) continue;
    for (const pid_t process : left) {
      for (const pid_t below : tree_of(process)) ::kill(below, SIGKILL);
    }
  }
  for (const Stream stream : {Stream::kOut, Stream::kError}) {
    if (pipes_[static_cast<std::size_t>(stream)] >= 0) read_from(stream);
    std::string& begun = begun_[static_cast<std::size_t>(stream)];
    if (!begun.empty()) on_line_(stream, std::exchange(begun, {}));
  }
}

void ChildProcess::signal(int number) const {
  if (!ended_) ::kill(process_, number);
}

bool ChildProcess::signal_below(int number, const std::string& variable) const {
  for (const pid_t process : ended_ ? std::vector<pid_t>() : tree_of(process_)) {
    std::ifstream file(fmt::format("/proc/{}/environ", process), std::ios::binary);
    for (std::string one; std::getline(file, one, '\0');) {
      if (one == variable) return ::kill(process, number) == 0;
    }
  }
  return false;
}

void ChildProcess::kill() {
  if (ended_) return;
  for (const pid_t process : tree_of(process_)) ::kill(process, SIGKILL);
  while (::waitpid(process_, &status_, 0) < 0 && errno == EINTR) {
  }
  finish();
}

}  // namespace pipetrain
