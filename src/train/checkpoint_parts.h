// How several processes write a checkpoint. Where all see its folder, each writes the tensors of
// its stages there, while training goes on; when the last has told process 0 so, that adds the
// manifest and gives the folder its name:
//
//   process 0   copy, write weights-0 …   ─┐                 manifest, sync, rename
//   process 1   copy, write weights-1 …   ─┴─ with the next step's messages ─┘
//
// Elsewhere process 0 receives tensor by tensor and writes each before it asks for the next.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "train/checkpoint.h"

namespace pipetrain {

class ProcessGroup;
class Saving;

class CheckpointParts {
 public:
  /// All processes make it, and find out whether they see the folder, which process 0 names; empty:
  /// nothing is saved. `saving`: of process 0. `only_finite`: refuses weights that are not.
  CheckpointParts(ProcessGroup& processes, Saving& saving, const std::filesystem::path& folder,
                  bool only_finite);
  CheckpointParts(const CheckpointParts&) = delete;
  CheckpointParts& operator=(const CheckpointParts&) = delete;

  /// Whether all processes write.
  bool is_shared() const { return shared_; }
  /// Whether a checkpoint is being written. The same in all processes.
  bool is_pending() const { return pending_; }

  // All processes call these in the same order.

  /// Saves what all have. `part`: the tensors here. `whole`: in process 0, everything else.
  void save(Checkpoint whole, Checkpoint part);
  /// What this process tells the others of its part, once it is written; empty: nothing.
  std::string take_record();
  /// What a process has told. The last one completes the checkpoint.
  void note(int process, std::string_view record);
  /// Waits until nothing is pending. Where that takes long, process 0 says for whom.
  void finish();

 private:
  void find_out(const std::filesystem::path& folder);
  void begin(Checkpoint part);
  void stream(const Checkpoint& part);
  void complete();
  void say_who_writes(double seconds) const;

  ProcessGroup& processes_;
  Saving& saving_;
  const bool only_finite_;
  bool shared_ = false;
  std::filesystem::path folder_;
  std::string tag_;  // of this run
  int number_ = 0;   // of checkpoints begun
  bool pending_ = false;
  // Of the pending checkpoint.
  Checkpoint whole_;
  std::filesystem::path unfinished_;
  std::vector<bool> told_;
  std::string failure_;
  std::mutex mutex_;  // of record_ and written_
  std::condition_variable changed_;
  std::string record_;
  bool written_ = false;  // the part here
  std::jthread writer_;   // last: it must end before what it uses
};

}  // namespace pipetrain
