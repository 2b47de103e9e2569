#include "cli/commands/supervise.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "base/output_file.h"
#include "pipeline/runtime/last_instructions.h"
#include "processes/restart_policy.h"
#include "train/checkpoint.h"
#include "train/folder_lock.h"
#include "train/signals.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

constexpr double kLookSeconds = 0.5;   // between looks at a process
constexpr double kMarkSeconds = 0.02;  // the same until the run is marked
constexpr double kBusyShare = 0.01;    // of a core: a process that computes so much is not stuck
constexpr const char* kMarked = "journal.txt";  // no process replaces it
constexpr std::size_t kLogBytes = 4096;         // of a log in a crash report
constexpr const char* kSecondsBefore = "PIPETRAIN_SECONDS_BEFORE";

/// Seconds of CPU time that a process has used; 0 when it is gone.
double cpu_seconds(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Whether a thread of a process waits in the kernel for a file, as for the end of a checkpoint on
/// a slow disk, where no signal would end it; or for whoever reads what the run prints.
bool waits_for_others(pid_t process) {
  std::error_code error;
  const fs::path threads = fmt::format("/proc/{}/task", process);
  for (fs::directory_iterator i(threads, error), end; !error && i != end; i.increment(error)) {
    if (is_disk_wait(read_if_file(i->path() / "stat", 4096).value_or("")) ||
        is_output_wait(read_if_file(i->path() / "syscall", 4096).value_or("")))
      return true;
  }
  return false;
}

/// Null if there is one already, or none can be made.
std::FILE* new_file(const fs::path& path) {
  try {
    return ::fdopen(open_output(path, OutputMode::kNew), "w");
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

struct Supervision::Shared {
  std::atomic<std::int64_t> steps, from_step;
  std::atomic<bool> trains;
  std::atomic<int> stop;  // the signal that asked to stop; 0: none
  char folder[4096];
  alignas(64) std::byte logs[kDeviceLogBytes];
};

Supervision::Supervision() {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PT_CHECK(memory != MAP_FAILED, kResource, "cannot share memory with a training process: {}",
           std::strerror(errno));
  shared_ = static_cast<Shared*>(memory);  // zeros are its initial state
}

Supervision::~Supervision() { ::munmap(shared_, sizeof(Shared)); }

fs::path Supervision::folder() const { return shared_->folder; }

void Supervision::note_folder(const fs::path& folder) {
  const std::string text = fs::absolute(folder).lexically_normal().string();
  if (text.size() < sizeof shared_->folder)
    std::memcpy(shared_->folder, text.c_str(), text.size() + 1);
}

void Supervision::note_begin(std::int64_t from_step) {
  shared_->steps = from_step;
  shared_->from_step = from_step;
  shared_->trains = true;
}

void Supervision::note_step(std::int64_t steps) {
  shared_->steps.store(steps, std::memory_order_relaxed);
}

/// The process that restarts the others.
class Supervisor {
 public:
  Supervisor(int most, double stall_seconds)
      : policy_(most), stall_seconds_(stall_seconds), shared_(*supervision_.shared_) {
    keep_device_logs_in(
        shared_.logs);  // of this process, which reads them, and of all its children
  }

  int run(const std::function<int(Supervision&)>& train) {
    sigset_t before;
    sigemptyset(&watched_);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
      sigaddset(&watched_, number);
    ::sigprocmask(SIG_BLOCK, &watched_, &before);
    for (;; ++supervision_.attempt_) {
      std::fflush(nullptr);
      shared_.trains = false;
      shared_.stop = 0;
      note_seconds_before_start();
      const pid_t parent = ::getpid();
      child_ = ::fork();
      PT_CHECK(child_ >= 0, kResource, "cannot start a training process: {}", std::strerror(errno));
      if (child_ == 0) {
        ::sigprocmask(SIG_SETMASK, &before, nullptr);
        ::prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (::getppid() != parent) ::raise(SIGTERM);
        share_stop_request(shared_.stop);
        return train(supervision_);
      }
      forget_early_log();
      const ProcessEnd end = wait_for_end();
      const RestartDecision decision = policy_.after(end);
      const bool failed = end.signal != 0 || !decision.reason.empty();
      if (decision.restarts || (failed && !stops_)) report(end, decision);
      if (!decision.restarts) {
        if (failed || (stops_ && end.code != 0)) save_what_is_left();
        return end.signal != 0 ? 128 + end.signal : end.code;
      }
      wait_until(steady_seconds() + decision.delay_seconds);
    }
  }

 private:
  ProcessEnd wait_for_end() {
    ProcessEnd end;
    std::uint64_t begun = 0;
    double looked = steady_seconds(), since = looked, cpu_since = 0;
    for (;;) {
      // Others follow the run from its first checkpoint on: it is marked as soon as it can be.
      const double seconds = mark_ >= 0 ? kLookSeconds : kMarkSeconds;
      const timespec time{0, static_cast<long>(seconds * 1e9)};
      const int number = ::sigtimedwait(&watched_, nullptr, &time);
      if (number > 0 && number != SIGCHLD) pass_on(number);
      mark_run();
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) == child_) {
        end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        break;
      }
      // After a stop of both, by a terminal, the process gets its time again.
      const double now = steady_seconds();
      const std::uint64_t instructions = instructions_begun();
      const double cpu = cpu_seconds(child_);
      if (!shared_.trains || instructions != begun || now - looked > 4 * kLookSeconds ||
          cpu - cpu_since > kBusyShare * stall_seconds_ || waits_for_others(child_)) {
        begun = instructions;
        since = now;
        cpu_since = cpu;
      }
      looked = now;
      if (now - since > stall_seconds_ && !end.stalled) {
        end.stalled = true;
        ::kill(child_, SIGKILL);
      }
    }
    end.trained = shared_.trains;
    end.steps = shared_.steps;
    if (end.trained) end.from_step = shared_.from_step;
    end.was_stopped = shared_.stop != 0;
    return end;
  }

  /// Lets others see that the run is supervised, as soon as it has a journal.
  void mark_run() {
    const fs::path journal = supervision_.folder() / kMarked;
    std::error_code ignored;
    if (mark_ >= 0 || supervision_.folder().empty() || !fs::exists(journal, ignored)) return;
    try {
      mark_ = open_output(journal, OutputMode::kAppend);
    } catch (const Error&) {
      return;
    }
    if (::flock(mark_, LOCK_EX | LOCK_NB) == 0) return;
    ::close(mark_);  // is_supervised() looks at it right now
    mark_ = -1;
  }

  /// Gives a signal to the training process. A terminal and most service managers have sent it
  /// there, too: what asks to stop is noted where both see it.
  void pass_on(int number) {
    if (number == SIGUSR1 || number == SIGUSR2) {
      ::kill(child_, number);
      return;
    }
    if (stops_) {
      insists_ = true;
      ::kill(child_, SIGKILL);
      return;
    }
    stops_ = true;
    int none = 0;
    if (!shared_.trains) {
      ::kill(child_, number);
    } else if (shared_.stop.compare_exchange_strong(none, number)) {
      say_that_run_will_stop();
    }
  }

  /// Logs how a process ended and keeps what is known of it in the run's folder.
  void report(const ProcessEnd& end, const RestartDecision& decision) const {
    const fs::path folder = supervision_.folder();
    std::string text = fmt::format("training ended by {} after step {}", text_of(end), end.steps);
    if (!decision.reason.empty()) text += "; not restarted: " + decision.reason;
    fs::path kept;
    if (!folder.empty()) {
      int number = 1;
      std::error_code ignored;
      while (fs::exists(kept = folder / fmt::format("crash-{}.txt", number), ignored)) ++number;
      if (std::FILE* file = new_file(kept)) {
        fmt::print(file, "{}\nprocess {}\n\nthe last instructions of each device:\n", text, child_);
        std::fflush(file);
        write_last_instructions(::fileno(file));
        for (const char* log : {"stderr.log", "events.jsonl"})
          fmt::print(file, "\nthe end of {}:\n{}", log, end_of_file(folder / log, kLogBytes));
        std::fclose(file);
        text += "; see " + printable(fs::proximate(kept).string());
      }
    }
    if (decision.restarts) {
      log_warning("train", "{}; restarting it", text);
    } else {
      log_error("train", "{}", text);
    }
  }

  /// Writes the state that only memory has, as no further process will take it up.
  void save_what_is_left() const {
    const fs::path folder = supervision_.folder();
    const fs::path checkpoints = folder / "checkpoints";
    if (folder.empty() || insists_) return;
    try {
      std::optional<Checkpoint> left = supervision_.snapshot().newest();
      if (!left || left->step <= newest_step(checkpoints)) return;
      left->reason = "error";
      const FolderLock lock(folder);
      const WrittenCheckpoint written = write_checkpoint(checkpoints, *left);
      log_info("train", "saved    {} · the last state that the training process has kept in memory",
               printable(fs::proximate(written.path).string()));
    } catch (const std::exception& error) {
      log_warning("train", "the last state of the run could not be saved: {}", error.what());
    }
  }

  RestartPolicy policy_;
  double stall_seconds_;
  Supervision supervision_;
  Supervision::Shared& shared_;
  sigset_t watched_{};
  pid_t child_ = -1;
  bool stops_ = false;    // has been asked to stop
  bool insists_ = false;  // has been asked again: nothing is saved
  int mark_ = -1;  // the locked journal: over NFS, only a file open for writing can be locked so
};

void note_seconds_before_start() {
  static const double first = steady_seconds();
  ::setenv(kSecondsBefore, fmt::format("{:.3f}", steady_seconds() - first).c_str(), 1);
}

double seconds_before_start() {
  const char* text = std::getenv(kSecondsBefore);
  return text ? std::max(0.0, std::strtod(text, nullptr)) : 0;
}

bool is_disk_wait(std::string_view stat) {
  const std::size_t name = stat.rfind(')');  // "PID (NAME) STATE …"; NAME may contain any character
  return name != std::string_view::npos && stat.substr(name).starts_with(") D");
}

bool is_output_wait(std::string_view call) {
  // "NUMBER DESCRIPTOR …" of a blocked call, "running" otherwise.
  for (const long number : {SYS_write, SYS_writev}) {
    for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
      if (call.starts_with(fmt::format("{} 0x{:x} ", number, descriptor))) return true;
    }
  }
  return false;
}

int supervise(int most, double stall_seconds, const std::function<int(Supervision&)>& train) {
  return Supervisor(most, stall_seconds).run(train);
}

bool is_supervised(const fs::path& run) {
  try {
    const InputFile file(run / kMarked, ErrorKind::kUsage);
    return ::flock(file.descriptor(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  } catch (const Error&) {
    return false;  // it has no such file yet
  }
}

}  // namespace pipetrain
