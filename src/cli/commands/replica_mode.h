// --replica-mode: replicas that do not wait for each other.
#pragma once

#include "cli/options/options.h"
#include "train/planned_network.h"

namespace pipetrain {

class ProcessGroup;

/// Without --replicas every process is one. Error (kUsage) for options of training that do not go
/// together with such replicas; others are refused where the network is made.
void check_replica_mode(Options& options, ProcessGroup* processes);

/// verify --replay: computes the updates of a run again. Returns the exit code.
int verify_replay(Options& options);

/// "3 replicas x 1 thread, in 2 processes (Open MPI) · async, …".
std::string words_on_replicas(const PlannedNetwork& network);

}  // namespace pipetrain
