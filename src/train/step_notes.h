// What the processes of a run tell each other after each step, in the message that shares its
// results: requests from outside, parts of checkpoints, and what process 0 finds due by its clock.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/run_requests.h"

namespace pipetrain {

class CheckpointParts;
class ProcessGroup;
class Runtime;

/// What is due by the clock and the disk of a process.
struct SaveDue {
  bool checkpoint = false;
  bool snapshot = false;
  bool defers = false;  // a checkpoint of the best model comes too soon after the one before
};

class StepNotes {
 public:
  struct Here {
    std::function<RunRequests()> asked;
    std::function<SaveDue()> due;
  };
  /// `here` is called at the end of each round.
  StepNotes(Runtime& runtime, CheckpointParts& parts, Here here);
  ~StepNotes();
  StepNotes(const StepNotes&) = delete;
  StepNotes& operator=(const StepNotes&) = delete;

  /// What any process was asked for in the rounds since the last call; the same in all.
  RunRequests take_requests();
  /// What was due in process 0 at the end of the last round.
  const SaveDue& due() const { return due_; }

 private:
  std::string mine() const;
  void read(const std::vector<std::string>& notes);

  Runtime& runtime_;
  CheckpointParts& parts_;
  Here here_;
  RunRequests asked_;
  SaveDue due_;
};

/// What all processes were asked for. All call it.
RunRequests requests_of_all(ProcessGroup& processes, RunRequests here);

}  // namespace pipetrain
