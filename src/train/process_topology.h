// The links between the devices of several processes, as a topology.
#pragma once

#include <optional>

#include "partition/topology.h"

namespace pipetrain {

class ProcessGroup;
struct PipelineConfig;

/// Levels: devices of a process, with the links in `threads` (measured on this machine by doctor
/// --measure; without it links cost nothing); processes of a host; hosts. Links between processes
/// are measured, or read from the cache of a run on the same hosts and network in the last 24
/// hours. If the devices are not evenly divided, one level with the slowest links. Called by all
/// processes, with the same result.
Topology topology_of_processes(ProcessGroup& group, int devices,
                               const std::optional<Topology>& threads,
                               const PipelineConfig& config);

/// Has the next run measure the links again. For process 0.
void forget_links(ProcessGroup& group, int devices);

}  // namespace pipetrain
