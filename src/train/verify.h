// Verifies a schedule: compares the pipeline with one thread that runs the same operators without
// stages, arenas, channels or overlap.
#pragma once

#include <string>
#include <vector>

#include "train/pipeline_run.h"

namespace pipetrain {

struct Verification {
  std::string reference;  // description of what it was compared with
  std::int64_t steps = 0;
  int gradients = 0, parameters = 0, losses = 0;  // compared
  std::vector<std::string> different;  // names of what differs, with the largest difference
  bool skipped = false;                // gradients were not finite, so no parameter was updated
  bool equal() const { return different.empty(); }
};

/// Adds a name to a list of differences if two tensors differ in any bit.
void compare(const std::string& what, const HostTensor& a, const HostTensor& b,
             std::vector<std::string>& different);

/// Runs a step of a run and of the reference on the same data and compares every loss, gradient,
/// parameter and running statistic bit for bit. A synchronous schedule is compared with the model
/// on one device (with a replicated stage: one device with one gradient accumulator per replica),
/// an asynchronous one with a replay of its program in one thread, over as many mini-batches as
/// fill the pipeline twice. Both use the backend's kernels for `threads` threads.
Verification verify(PipelineRun& run);

}  // namespace pipetrain
