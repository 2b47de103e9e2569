// --schedule auto: the best configuration in simulation for a model, its data and its devices.
#pragma once

#include <optional>
#include <vector>

#include "partition/topology.h"
#include "pipeline/schedule/search.h"
#include "train/config.h"

namespace pipetrain {

class Network;

struct FoundSchedules {
  std::vector<Candidate> candidates;  // fastest first
  int chosen = -1;                    // -1: nothing fits
  double seconds = 0;                 // that the search took, profiling included
  std::vector<int> order;             // of the nodes, in which their cuts are given
};

struct SearchScope {
  bool micro_batches = false;          // try other numbers of micro-batches than the run's own
  bool fewer_devices = false;          // leave devices idle, or use them as replicas
  bool asynchronous = false;           // try schedules that train with older weights too
  bool several_processes = false;      // of the run: shared parameters take messages
  int processors = 0;                  // that the devices of several processes have; 0: of this one
  const Network* same_data = nullptr;  // of the same model: its data are taken
  std::optional<Topology> topology = {};  // where no option names one; nothing: what was measured
  double profile_seconds = 0;  // after which no other number of micro-batches is profiled; 0: all
};

/// Profiles the model at each number of micro-batches and searches.
FoundSchedules find_schedules(const RunConfig& config, const SearchScope& scope);

/// Sets schedule, devices, replicas, micro-batches and recompute of a run as a candidate has them.
/// A given micro-batch size stays: a search varies the number of micro-batches only without one.
void take_over(const Candidate& candidate, RunConfig& config);

}  // namespace pipetrain
