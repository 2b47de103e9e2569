// What must be the same where several processes train together: options, vectors, the checkpoint.
#pragma once

#include <optional>

#include "cli/options/options.h"
#include "cli/options/resume_command_line.h"

namespace pipetrain {

class ProcessGroup;

/// All processes are told the same: not everything that decides numbers would be missed later.
/// Error (kUsage) naming the first option that differs. Null: there is one process.
void check_same_options(const Options& options, ProcessGroup* processes);

/// CPUs of one kind: layouts of what is sent, and the bits of replicas, follow their vectors. Error
/// (kResource).
void check_same_vectors(ProcessGroup* processes);

/// The checkpoint that process 0 has found, for all; its folder is visible to them.
std::optional<FoundCheckpoint> same_checkpoint(const Options& options, ProcessGroup* processes);

}  // namespace pipetrain
