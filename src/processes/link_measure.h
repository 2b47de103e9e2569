// Measures links between processes, with messages and with reads of memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

class ProcessGroup;

struct ProcessLink {
  double latency_seconds = 0;        // of a short message
  double bytes_per_second = 0;       // one way
  double both_bytes_per_second = 0;  // the sum of both ways at once
  /// Of each of two processes that sum what the other has in memory; 0 unless all processes can
  /// read those on their host.
  double read_bytes_per_second = 0;
};

/// The slowest of the measured links, by what they join.
struct ProcessLinks {
  bool on_hosts = false, between_hosts = false;  // whether there are any
  ProcessLink on_host, between;
};

/// Measures between the first two processes of each host, and between each host and the next. All
/// processes call it and get the same. Takes a second for two hosts where a message takes 1 ms, 2.5
/// where it takes 10 ms, and up to twice that for any number of machines. `machine` is equal for
/// processes that share cores. Where a machine has several hosts, such as containers, their own
/// links are measured one host after another, which adds up; links between hosts two by two.
ProcessLinks measure_process_links(ProcessGroup& group, std::string_view machine);

/// The processes of each host, in their order; hosts in the order of their first process.
std::vector<std::vector<int>> processes_of_hosts(const ProcessGroup& group);

}  // namespace pipetrain
