// What the stages of a plan cost on the devices of a network: compute, sums of gradients, links.
#pragma once

#include <vector>

#include "partition/plan.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/stage/slice.h"
#include "train/profiled_network.h"

namespace pipetrain {

/// The costs of the stages of a plan; `slices`: its own, null: not known yet, and it has no
/// replicas.
Costs costs_of_stages(const ProfiledNetwork& network, const Plan& plan, const Slices* slices);

/// Gives every edge the link between its devices, if those are not present, in several processes or
/// GPUs. (Within one process CPU cores do not copy values: only the latency counts.) `placement`:
/// by stage.
void set_edge_links(const ProfiledNetwork& network, const std::vector<Edge>& edges,
                    const std::vector<std::vector<int>>& placement, Costs& costs);

/// Has devices of other speeds take other times, where the plan does not count that.
void set_device_speeds(const ProfiledNetwork& network, const Program& program, Costs& costs);

/// Adds to a synchronization of the stages the messages in which they hand on their gradients of
/// weights that several of them have, between processes, or between devices that are not present.
/// (Within one process they are read from memory.) `placement`: by stage.
void add_tied_gradients(const ProfiledNetwork& network, const Slices& slices,
                        const std::vector<std::vector<int>>& placement, Costs& costs);

}  // namespace pipetrain
