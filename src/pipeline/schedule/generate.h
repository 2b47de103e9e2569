// The schedules: each is a short pure function from sizes to compute instructions. Transfers come
// later (lower.h), so a new schedule is one function and one row beside it (schedule_table.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partition/memory_rule.h"
#include "pipeline/program/program.h"

namespace pipetrain {

/// Which device runs which stages, with p devices.
enum class Placement {
  kChain,  // stage s on device s, or on replicas of its own
  kLoop,   // stage s on device s mod p
  kV,      // two stages per device: down the devices and back up
};

/// The description of a schedule, for help texts and planners.
struct ScheduleDescription {
  std::string name;
  std::string summary;
  UpdateRule rule = UpdateRule::kSync;
  Placement placement = Placement::kChain;
  bool takes_replicas = false;    // ScheduleOptions::replicas
  bool takes_warm_up = false;     // ScheduleOptions::warm
  bool takes_memory = false;      // ScheduleOptions::memory_units
  bool splits_backward = false;   // input and weight gradients are separate instructions
  bool balances_warm_up = false;  // the warm-up is set from measured times
  /// The memory rule of a stage, replicas included; nullopt where only the program tells.
  std::optional<MemoryRule> memory = {};
};

struct ScheduleOptions {
  std::string name = "1f1b";
  /// Stages of the program: stages_per_device() for each device, or for each group of replicas.
  int stages = 1;
  int micro_batches = 1;
  std::vector<bool> recompute;  // [stages]; empty: nowhere
  /// [stages]: devices that run a stage, micro-batches dealt round robin (1F1B-RR); empty: one
  /// each.
  std::vector<int> replicas;
  /// Whether gradients are summed as a tree, whose first sums are of adjacent devices.
  bool sums_as_tree = false;
  /// Forwards that each replica of stage s runs ahead of its first backward; times the replicas it
  /// must not rise with s. Empty: the schedule's own.
  std::vector<int> warm;
  /// Stages on a device, for the interleaved schedules.
  int chunks = 2;
  /// Most micro-batches that a device may hold at once; 0: the schedule's own. For `zb` the K of
  /// the family: p is zb-h1, 2p-1 is zb-h2.
  int memory_units = 0;
  /// pipedream-2bw: micro-batches of one update; 0: as many as there are stages, or more where the
  /// warm-up needs it.
  int micro_batches_per_update = 0;
  /// Puts a kGradientSync on every device before its updates: tied weights in several stages,
  /// global clipping.
  bool gradient_sync = false;
};

/// Returns every schedule that generate() knows.
const std::vector<ScheduleDescription>& schedules();

/// Returns one of them. Throws Error(kUsage) with the nearest name where there is none.
const ScheduleDescription& describe_schedule(const std::string& name);

/// The same; null for a name that generate() does not know, such as that of a schedule's file.
const ScheduleDescription* find_schedule(const std::string& name);

/// The planner's rules of a schedule. A name that generate() does not know has no memory rule.
PlannedSchedule planned_schedule(const std::string& name);

/// Stages that a schedule puts on each device: 1, `chunks`, or 2.
int stages_per_device(const std::string& name, int chunks);

/// Makes the compute-only program of a named schedule, annotated, with the edges of a plain chain.
/// Throws Error(kUsage) for an unknown name or sizes that cannot be. The micro-batches that a stage
/// holds at once are Program::slots_per_stage of the result.
Program generate(const ScheduleOptions& options);

/// Returns the program that runs only the forwards of `micro_batches` where `training` has
/// its stages: evaluation between rounds. It cannot deadlock with any placement.
Program forward_program(const Program& training, int micro_batches);

/// Returns the devices of each stage. Replicas of a chain are adjacent.
std::vector<std::vector<int>> place_stages(Placement placement, int devices,
                                           const std::vector<int>& replicas);

/// The replica on the place-th device of a stage. `in_tree`: where sums are a tree
/// (pipeline/transport/sum_tree.h), replicas that are joined first are adjacent, so that those of
/// a process are a subtree; `replicas` is a power of two.
int replica_at(int place, int replicas, bool in_tree);

}  // namespace pipetrain
