// Sharded updates: each parameter of a stage with several replicas is updated by one of them, which
// alone keeps the optimizer's state of it and hands the new weights to the others. Owners have
// whole tensors, as some optimizers use their norms.
#pragma once

#include <vector>

#include "passes/training_graph.h"
#include "pipeline/stage/slice.h"

namespace pipetrain {

/// Which of its stage's replicas a stage is, where these share the updates.
struct UpdateShare {
  int replica = 0;
  int replicas = 1;  // 1: each makes all updates
};

constexpr int kEveryReplica = -1;

struct UpdateOwners {
  std::vector<int> of_parameter;     // as StageSlice::parameters; kEveryReplica for tied weights
  std::vector<int> of_accumulation;  // as TrainingGraph::accumulations
};

/// Spreads the parameters over the replicas, the largest first, each to the one with the least.
/// What is computed from the same accumulators stays together. Every replica updates what other
/// stages hold too, even if only one of them computes its gradient: the others take its sum from
/// the first replica.
UpdateOwners update_owners(const TrainingGraph& training, const StageSlice& slice, int replicas);

/// The replica that owns most.
int largest_share(const TrainingGraph& training, const StageSlice& slice, int replicas);

}  // namespace pipetrain
