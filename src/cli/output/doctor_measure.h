// pipetrain doctor --measure: measures this machine's memory and threads, prints a table and writes
// the topology that the planner then uses.
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

/// Takes a few seconds. Other busy programs distort the results.
MachineMeasurement measure_machine();

/// One device for each core, joined by one level: with the measured latency and bandwidth between
/// stages. Memory is shared evenly. (An all-reduce over all threads is slower than links of that
/// bandwidth suggest: plans with replicas are slightly optimistic.)
Topology topology_of(const MachineMeasurement& measurement);

/// Measures, writes the topology to `output` (measured_topology_path() if empty) and prints a
/// table, or with `json` a document pipetrain.measurement/1. Returns the exit code. An Error
/// (kResource) when the file cannot be written.
int measure_and_report(bool json, const std::string& output);

}  // namespace pipetrain
