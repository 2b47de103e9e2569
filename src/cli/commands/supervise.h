// train --restarts: training in a child process, which is started again when it crashes, is killed
// or stands still.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "train/snapshot.h"

namespace pipetrain {

/// What the training processes of a run and the one that restarts them share.
class Supervision {
 public:
  Supervision();
  ~Supervision();
  Supervision(const Supervision&) = delete;
  Supervision& operator=(const Supervision&) = delete;

  Snapshot& snapshot() { return snapshot_; }
  const Snapshot& snapshot() const { return snapshot_; }
  /// The folder of the run, once one of the processes has chosen it; empty before.
  std::filesystem::path folder() const;
  /// Whether this is not the run's first training process.
  bool is_restart() const { return attempt_ > 0; }

  // Of the training process.

  void note_folder(const std::filesystem::path& folder);
  /// The first step begins, from a state of so many steps. Signals to stop are watched from now on.
  void note_begin(std::int64_t from_step);
  void note_step(std::int64_t steps);

 private:
  friend class Supervisor;
  struct Shared;
  Shared* shared_;
  Snapshot snapshot_;
  int attempt_ = 0;
};

/// Runs `train` in a child process, restarts it according to RestartPolicy(most), and returns its
/// exit code, or 128 plus the number of the signal that ended it. A child that neither begins an
/// instruction nor computes for `stall_seconds` has stalled and is killed. In the child this
/// returns what `train` returns, or throws what it throws.
int supervise(int most, double stall_seconds, const std::function<int(Supervision&)>& train);

/// Tells the training processes that this one is about to start how many seconds have passed since
/// its first call. Hosts have no clock in common.
void note_seconds_before_start();
/// What a training process was told; 0 for a run that nothing restarts.
double seconds_before_start();

/// Whether a thread waits in the kernel for a file, by its line in /proc/PROCESS/task/THREAD/stat.
bool is_disk_wait(std::string_view stat);
/// Whether it waits for a reader of standard output or standard error, by its line in …/syscall.
bool is_output_wait(std::string_view call);

/// Whether a process restarts the training processes of the run in a folder, so that the run may go
/// on although none of them is there now.
bool is_supervised(const std::filesystem::path& run);

}  // namespace pipetrain
