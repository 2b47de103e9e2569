// pipetrain doctor --measure: what this machine's memory and threads do, as a table and as the
// topology that the planner takes from then on.
#pragma once

#include <string>

#include "partition/topology.h"

namespace pipetrain {

/// Rates of one thread are measured alone and with all threads busy; of these, the second counts.
struct MachineMeasurement {
  int threads = 1;  // cores that this process may use
  double copy_bytes_per_second_alone = 0, copy_bytes_per_second = 0;
  double flops_per_second_alone = 0, flops_per_second = 0;
  // Between two threads; 0 on a machine with one core.
  double hand_over_seconds = 0;
  double between_threads_bytes_per_second = 0;
  double all_reduce_seconds = 0;
  std::size_t all_reduce_bytes = 0;
  double all_reduce_ring_bytes_per_second = 0;
  std::size_t memory_bytes = 0;  // of the machine
};

/// Takes a few seconds. Another program that is busy meanwhile is in the numbers.
MachineMeasurement measure_machine();

/// One device for each core, joined by one level: its latency is the hand-over, its bandwidth the
/// copy from another stage. Memory is shared evenly. (A sum over all threads is slower than links
/// of that bandwidth would make it: plans with replicas are a little too hopeful.)
Topology topology_of(const MachineMeasurement& measurement);

/// Measures, writes the topology to `output` (measured_topology_path() if empty) and prints a
/// table, or with `json` a document pipetrain.measurement/1. Returns the exit code. An Error
/// (kResource) when the file cannot be written.
int measure_and_report(bool json, const std::string& output);

}  // namespace pipetrain
