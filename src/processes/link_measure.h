// Measures links between processes by messages back and forth.
#pragma once

#include <string>
#include <vector>

namespace pipetrain {

class ProcessGroup;

struct ProcessLink {
  double latency_seconds = 0;        // of a short message
  double bytes_per_second = 0;       // one way
  double both_bytes_per_second = 0;  // the sum of both ways at once
  /// Of each process while both read the other's memory; 0 unless all on their hosts can.
  double read_bytes_per_second = 0;
};

/// The slowest of the measured links, by what they join.
struct ProcessLinks {
  bool on_hosts = false, between_hosts = false;  // whether there are any
  ProcessLink on_host, between;
};

/// Measures between the first two processes of each host, and between each host and the next. All
/// processes call it and get the same. Takes a fraction of a second, for any number of hosts, and
/// up to three where a message takes 10 ms.
ProcessLinks measure_process_links(ProcessGroup& group);

/// The processes of each host, in their order; hosts in the order of their first process.
std::vector<std::vector<int>> processes_of_hosts(const ProcessGroup& group);

}  // namespace pipetrain
