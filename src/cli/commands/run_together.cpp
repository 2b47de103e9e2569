#include "cli/commands/run_together.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "base/file_errors.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/parallel_blocks.h"
#include "base/safe_text.h"
#include "device/plugin.h"
#include "processes/heartbeat.h"
#include "processes/process_group.h"
#include "profile/machine.h"
#include "train/process_agreement.h"

namespace pipetrain {
namespace {

/// Grace period for the other processes to finish a kernel or a file.
constexpr double kGraceSeconds = 5;
/// How long the launcher may take to end after the processes; it usually takes a fraction of a
/// second. If a process has been lost, the launcher may wait forever for its host.
constexpr double kLauncherSeconds = 3, kLauncherSecondsOfLost = 1.5;

/// Hosts may start their processes, and read the program over a network, at different times.
constexpr double kJoinSeconds = 120;
/// A busy machine takes long for MPI_Finalize, and must not fail a run that is complete.
constexpr double kLeaveSeconds = 15;

/// Where errors go: the standard error that the process was started with.
int first_error_output = STDERR_FILENO;

[[noreturn]] void end_together(ProcessGroup& group, const Error& error) {
  group.say_failed(error);
  bool others_know = false;
  if (group.leads()) {
    group.wait_for_failures(0);  // takes in what the others have said by now
    std::fprintf(stderr, "error: %s\n", safe_text(error.what()).c_str());
    if (error.kind() == ErrorKind::kInternal)
      std::fputs("this is a bug in pipetrain; please report it\n", stderr);
    std::fflush(nullptr);
    others_know = group.wait_for_failures(kGraceSeconds);
  } else {
    others_know = group.wait_for_failures(kGraceSeconds);
    if (!others_know) {
      std::fflush(nullptr);
      ::dprintf(first_error_output, "process %d: error: %s\n", group.rank(),
                safe_text(error.what()).c_str());
    }
    // Process 0 aborts all processes after it has printed the error.
    if (others_know) std::this_thread::sleep_for(std::chrono::duration<double>(2 * kGraceSeconds));
  }
  end_launcher_after(others_know ? kLauncherSeconds : kLauncherSecondsOfLost);
  group.processes().abort(static_cast<int>(error.kind()));
  std::_Exit(static_cast<int>(error.kind()));
}

/// MPI waits without end for a process that has been stopped or cut off while all join or leave.
/// Ends this process and the launcher with an error unless destroyed in time.
class EndInTime {
 public:
  EndInTime(double seconds, std::string error)
      : thread_([=, error = std::move(error)](const std::stop_token& done) {
          std::mutex mutex;
          std::condition_variable_any changed;
          std::unique_lock lock(mutex);
          const std::chrono::duration<double> time(seconds);
          if (changed.wait_for(lock, done, time, [&] { return done.stop_requested(); })) return;
          report_first_error_only();
          std::fprintf(stderr,
                       "error: %s for %.0f s; it may have been stopped, or its host cut off\n",
                       error.c_str(), seconds);
          std::fflush(nullptr);
          end_launcher_after(kLauncherSecondsOfLost);
          std::_Exit(static_cast<int>(ErrorKind::kDevice));
        }) {}

 private:
  std::jthread thread_;
};

/// Several threads read and copy weights. Processes on the same cores divide them.
void share_cores_with_neighbors(ProcessGroup& group) {
  const std::string here = machine_id() + " " + cores_text();
  const std::vector<std::string> all = group.all_gather(here);
  const auto neighbors = static_cast<int>(std::ranges::count(all, here));
  most_block_threads = std::max(1, available_cores() / neighbors);
}

}  // namespace

void keep_output_in(const std::filesystem::path& path) {
  int file = -1;
  try {
    file = open_output(path, OutputMode::kAppend);
  } catch (const Error&) {
    return;  // it stays where the launcher has it
  }
  std::fflush(nullptr);
  first_error_output = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
}

void report_first_error_only() {
  try {
    if (launch_of_environment().rank == 0) return;
  } catch (const Error&) {
    return;
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));
}

int run_together(double timeout_seconds, const std::function<int(ProcessGroup*)>& body) {
  std::optional<EndInTime> watch;
  if (launch_of_environment().size > 1)
    watch.emplace(std::max(timeout_seconds, kJoinSeconds), "a process has not joined the others");
  Processes* processes = join_processes();
  if (!processes) return body(nullptr);
  // Never freed: messages may still be in transit in its memory.
  auto& group = *new ProcessGroup(*processes);
  try {
    if (!group.leads()) set_log_level(LogLevel::kError);
    check_builds(group, build_id());
    const Heartbeat heartbeat(group, timeout_seconds);
    watch.reset();
    group.find_readable_processes();
    share_cores_with_neighbors(group);
    const int code = with_file_errors([&] { return body(&group); });
    group.all_gather("");  // however long process 0 writes the model
    watch.emplace(std::max(timeout_seconds, kLeaveSeconds),
                  "all work is done and all files are written, but a process has not ended");
    group.leave();
    return code;
  } catch (const Error& error) {
    end_together(group, error);
  } catch (const std::bad_alloc&) {
    end_together(group, Error(ErrorKind::kResource, "not enough memory"));
  } catch (const std::exception& error) {
    end_together(group, Error(ErrorKind::kInternal, error.what()));
  }
}

}  // namespace pipetrain
