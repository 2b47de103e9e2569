// --replica-mode: replicas that do not wait for each other.
#pragma once

#include <filesystem>
#include <optional>

#include "cli/options/options.h"
#include "train/planned_network.h"

namespace pipetrain {

struct Checkpoint;

/// Without --replicas, every process is one replica. `resumed`: the checkpoint that training
/// resumes from, or null. If a run with backup workers resumes with another number of processes,
/// the number of backup workers changes and the gradients per update stay the same, unless another
/// mode is given. Error (kUsage) for training options that such replicas do not support (the others
/// are checked when the network is created), (kResource) for too few processes.
void check_replica_mode(Options& options, const Checkpoint* resumed);

/// The newest checkpoint, without its tensors, that the options of train go on from; empty: none.
/// `folder`: of the run that they begin or resume.
std::optional<Checkpoint> record_to_resume(const Options& train,
                                           const std::filesystem::path& folder);

/// The processes that a run with backup workers needs, where every process is a replica.
struct NeededProcesses {
  int least = 1;             // from the record of the run that is resumed
  std::optional<int> spare;  // of a new run: how many of its processes it can do without
};
/// `folder`: of the run that the options of train begin or resume. What a run without checkpoints
/// has in commits alone is not looked at.
NeededProcesses needed_processes(const Options& train, const std::filesystem::path& folder);

/// verify --replay: computes the updates of a run again. Returns the exit code.
int verify_replay(Options& options);

/// "3 replicas x 1 thread, in 2 processes (Open MPI) · async, …".
std::string words_on_replicas(const PlannedNetwork& network);

}  // namespace pipetrain
