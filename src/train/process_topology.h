// The links between the devices of several processes, as a topology.
#pragma once

#include <optional>

#include "partition/topology.h"

namespace pipetrain {

class ProcessGroup;

/// Levels: devices of a process, joined as in `threads` (what doctor --measure found on this
/// machine; nothing: by links that cost nothing), processes of a host, hosts. Links between
/// processes are measured, or read from the cache of a run on the same hosts
/// and network in the last 24 hours. One level with
/// the slowest links where the devices are not evenly divided. All processes call it and get the
/// same.
Topology topology_of_processes(ProcessGroup& group, int devices,
                               const std::optional<Topology>& threads, bool use_cache);

/// Has the next run measure the links again. For process 0.
void forget_links(ProcessGroup& group, int devices);

}  // namespace pipetrain
