// Finds how to train: tries stages, replicas, micro-batches, schedules and recompute against each
// other in the simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "partition/plan.h"
#include "pipeline/program/program.h"

namespace pipetrain {

struct SearchRequest {
  std::int64_t batch = 1;  // samples of a mini-batch
  int devices = 1;
  /// Numbers of micro-batches to try, of the whole mini-batch.
  std::vector<int> micro_batches;
  /// What the chain costs when the mini-batch is cut into so many micro-batches.
  std::function<const ChainCosts&(int micro_batches)> costs;
  std::vector<std::string> schedules;  // empty: all synchronous ones
  bool fewer_devices = true;           // leave devices idle, or give stages several of them
  bool recompute = true;               // try recompute as well
  int chunks = 2;                      // stages of a device in interleaved schedules
  std::size_t memory_limit_bytes = 0;  // of a device; 0: none
  double optimizer_bytes_per_parameter_byte = 2;
  /// Links between devices; without levels they cost nothing.
  Topology topology;
  /// Stages that can really compute at once, where devices share the cores of one machine; 0: all.
  int processors = 0;
  int most_simulated = 16;  // cuts that are simulated, the most promising ones
  int most_moved = 3;       // of these and their schedules: the fastest, whose cuts are moved
};

/// One way to train.
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
  std::size_t peak_bytes = 0;  // of the device that needs most
  bool fits = true;            // under the memory limit
  bool pareto = false;         // no other is as fast in less memory
};

/// Returns the candidates that were simulated, fastest first. Rows of `places` devices stand beside
/// each other as equal replicas, of which one is simulated; the sum of gradients over them is part
/// of the update. Every cut is exact for its slowest stage (plan_stages()), in long chains for its
/// compute alone; transfers are priced in any case. Which cuts are simulated is decided by the time
/// that a mini-batch takes by the closed form of 1f1b, and by memory. The fastest synchronous
/// candidates then get the cuts that suit their schedules (move_cuts()).
std::vector<Candidate> search(const SearchRequest& request);

/// Returns the candidate to take: the fastest that fits, or one that is at most 1 % slower and
/// needs least memory; synchronous ones first. -1 when none fits.
int choose(const std::vector<Candidate>& candidates);

}  // namespace pipetrain
