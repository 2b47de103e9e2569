// Recomputes a run whose replicas did not wait for each other, in one thread, from its initial
// state and the record of what depended on timing.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint.h"
#include "train/pipeline_run.h"

namespace pipetrain {

struct Replay {
  std::int64_t updates = 0;
  int tensors = 0;                     // compared: weights, statistics, optimizer's state
  std::vector<std::string> different;  // names of those that differ, with the largest difference
  std::int64_t most_versions = 0;      // of the weights that were kept at a time
  bool equal() const { return different.empty(); }
};

/// Makes the updates of a checkpoint's record and compares the result with its tensors, bit for
/// bit. `run` is in the state that the run began with; its runtime computes. Error (kData) for a
/// record that no run can have, (kUsage) where the run cannot be computed again.
Replay replay(PipelineRun& run, const Checkpoint& checkpoint);

}  // namespace pipetrain
