// Searches for the best configuration: compares stages, replicas, micro-batches, schedules and
// recompute in the simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "partition/plan.h"
#include "pipeline/program/program.h"
#include "pipeline/schedule/warm_up.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {

struct SearchRequest {
  std::int64_t batch = 1;  // samples of a mini-batch
  int devices = 1;
  /// Numbers of micro-batches to try, of the whole mini-batch.
  std::vector<int> micro_batches;
  /// The costs of the chain with this number of micro-batches.
  std::function<const ChainCosts&(int micro_batches)> costs;
  std::vector<std::string> schedules;      // empty: all synchronous ones
  bool fewer_devices = true;               // also try idle devices and replicas
  Recompute recompute = Recompute::kAuto;  // kAuto: with and without
  int chunks = 2;                          // stages of a device in interleaved schedules
  int memory_units = 0;                    // ScheduleOptions::memory_units of those that take it;
                                           // above 0: no others are tried
  std::size_t memory_limit_bytes = 0;      // of a device; 0: none
  double warm_up_tolerance = WarmUpCosts().tolerance;
  double optimizer_bytes_per_parameter_byte = 2;
  double shared_bytes_per_parameter_byte = 0;  // of these, what replicas divide among themselves
  /// Links between devices; without levels they cost nothing.
  Topology topology;
  /// Stages that can compute concurrently, where devices share the cores of one machine; 0: all.
  int processors = 0;
  /// An update needs the gradients of all stages, also where none share a parameter.
  bool gradient_sync = false;
  /// Devices send each other the gradients of parameters that they share; else they read them.
  bool sends_tied_gradients = false;
  std::optional<CoreSharing> waking;  // of the threads of such devices
  int most_simulated = 16;            // most promising cuts to simulate
  int most_moved = 3;                 // fastest of these whose cuts are tuned by simulation
};

/// One configuration.
struct Candidate {
  std::string schedule;
  int places = 1;         // devices in a row, each with one stage or more
  int replicas = 1;       // of the whole row: each takes its share of the micro-batches
  int micro_batches = 1;  // of the mini-batch, over all replicas
  int chunks = 1;         // stages of a device
  bool recompute = false;
  bool asynchronous = false;
  Plan plan;
  double step_seconds = 0;  // of a mini-batch
  double samples_per_second = 0;
  double bubble = 0;
  std::size_t peak_bytes = 0;  // of the device with the highest peak
  bool fits = true;            // under the memory limit
  bool pareto = false;         // Pareto-optimal in time and memory
};

/// Returns the candidates that were simulated, fastest first. Rows of `places` devices are equal
/// replicas, of which one is simulated; the all-reduce over them is part of the update. Every cut
/// is exact for its slowest stage (plan_stages()), in long chains for its compute alone; transfers
/// are priced in any case. The cuts to simulate are selected by the closed form of 1f1b and by
/// memory. The cuts of the fastest synchronous candidates are then tuned for their schedules
/// (move_cuts()).
std::vector<Candidate> search(const SearchRequest& request);

/// Returns the candidate to use: the fastest that fits, or one that is at most 1 % slower and needs
/// least memory; synchronous ones first. -1 when none fits.
int choose(const std::vector<Candidate>& candidates);

}  // namespace pipetrain
