// What the processes of a run share before it begins, and the check that they agree.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "partition/topology.h"
#include "pipeline/program/program.h"
#include "pipeline/simulate/simulate.h"
#include "profile/profile.h"
#include "train/config.h"
#include "train/program_maker.h"

namespace pipetrain {

class ByteReader;
class ByteWriter;
class PlannedNetwork;
class ProcessGroup;

/// The cores that a run computes on.
struct CoreShare {
  int cores = 1;    // of all processes
  int threads = 1;  // of each device
  /// Of all devices on the cores of this process: how many come before its own, and how many there
  /// are; 0: its own alone.
  int devices_before = 0, sharing_devices = 0;
  std::vector<CoreGroup> groups;  // of several processes: the devices on the same cores
};

/// The process of each device; null: one process has all.
int process_of(int device, int devices, const ProcessGroup* processes);

/// The GPUs that a run has; processes number theirs from 0.
int different_gpus(const std::vector<int>& gpu_ids, const ProcessGroup* processes);

/// Processes of a machine that may use the same cores divide them among their devices; all stages
/// get as many threads, which decide bits. Error (kUsage) for more processes than devices.
CoreShare share_cores(const PipelineConfig& config, int devices, ProcessGroup* processes);

/// Checks that all processes are the same build, whose messages they understand. Error (kUsage)
/// names one that is not `build`.
void check_builds(ProcessGroup& processes, std::string_view build);

/// Broadcasts the profile that process 0 has measured. Error (kUsage) in all if another process has
/// another graph.
void share_profile(ProcessGroup& processes, std::size_t nodes, std::optional<Topology>& topology,
                   Profile& profile);

/// Broadcasts the times of process 0.
std::vector<int> share_order(ProcessGroup& processes, const std::vector<int>& order);

/// What a search has chosen on process 0, for the others: schedule, devices, micro-batches,
/// recompute, cuts.
void put_choice(ByteWriter& writer, const PipelineConfig& pipeline);
void take_choice(ByteReader& reader, PipelineConfig& pipeline);

/// Checks that all processes have the same model, weights, data, plan and options. Error
/// (kUsage) in all of them names what differs.
void check_agreement(ProcessGroup& processes, const PlannedNetwork& network,
                     std::span<const Program* const> programs);

}  // namespace pipetrain
