// A child process whose output is read line by line. Killing it also kills, by process id, all
// processes that it has started.
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

namespace pipetrain {

/// Makes orphaned descendants children of this process, so that they can be killed.
void adopt_orphans();

class ChildProcess {
 public:
  enum class Stream { kOut, kError };
  /// Gets a line without its end.
  using OnLine = std::function<void(Stream, const std::string&)>;

  /// `words`: the program, as found in PATH, and its arguments. `unset`: variables that it does not
  /// get. It has a process group of its own, so that a terminal's signals do not reach it, and ends
  /// with this process. Error (kResource) when there can be no more processes.
  ChildProcess(const std::vector<std::string>& words, const std::vector<std::string>& unset,
               OnLine on_line);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Reads its output until this time (of steady_seconds), or until `wake` can be read. Whether it
  /// has ended, with all that it had started.
  bool wait(double until, int wake = -1);
  /// Of waitpid, once it has ended. 127 is the exit code where there is no such program.
  int status() const { return status_; }
  void signal(int number) const;
  /// Signals the first process below it in whose environment "NAME=VALUE" is. Whether there is one.
  bool signal_below(int number, const std::string& variable) const;
  /// Kills it and all that it has started. With adopt_orphans() it returns when they have ended.
  void kill();

 private:
  void read_from(Stream stream);
  void finish();

  pid_t process_ = -1;
  int handle_ = -1;
  bool ended_ = false;
  int status_ = 0;
  OnLine on_line_;
  std::array<int, 2> pipes_{-1, -1};
  std::array<std::string, 2> begun_;  // lines
};

}  // namespace pipetrain
