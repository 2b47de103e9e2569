// Checks that the processes of a run agree: options, vector extensions, checkpoint.
#pragma once

#include <optional>

#include "cli/options/options.h"
#include "cli/options/resume_command_line.h"
#include "train/commits.h"

namespace pipetrain {

class ProcessGroup;

/// Checks that all processes have the same options, since later checks do not see all of them.
/// Error (kUsage) naming the first option that differs. Null: a single process.
void check_same_options(const Options& options, ProcessGroup* processes);

/// Checks that all CPUs have the same vector extensions: message layouts and the bits of replicas
/// depend on them. Error (kResource).
void check_same_vectors(ProcessGroup* processes);

/// Sends the checkpoint that process 0 has found to all; they must see its folder.
std::optional<FoundCheckpoint> same_checkpoint(const Options& options, ProcessGroup* processes);

/// Under `launch`, a commit of this run (train/commits.h) that is newer than its checkpoints.
std::optional<FoundCommit> commit_to_resume(const Options& options, ProcessGroup* processes);

}  // namespace pipetrain
