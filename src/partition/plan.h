// A plan: where the chain of a model is cut into stages, with the predicted costs of each stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "partition/memory_rule.h"
#include "partition/topology.h"
#include "profile/chain_cost.h"

namespace pipetrain {

enum class Recompute : unsigned char {
  kNone,  // every activation that a gradient reads is kept
  kAll,   // every stage keeps its inputs only and runs its forward again
  kAuto,  // as kAll, but only in stages that would not fit otherwise
};

struct TransferCost {
  double latency_seconds =
      0;  // of each transfer: one forward and one backward per micro-batch and cut
  double bytes_per_second = std::numeric_limits<double>::infinity();
  double all_reduce_bytes_per_second = 0;  // of sums of gradients; 0: bytes_per_second
};

inline TopologyLevel level_of(const TransferCost& link) {
  return {"", 1, link.bytes_per_second, link.latency_seconds, link.all_reduce_bytes_per_second};
}

/// The objective of plan_devices().
enum class Objective : unsigned char {
  kAuto,        // as the schedule asks: kThroughput where it never flushes, else kMiniBatch
  kThroughput,  // the slowest stage: what bounds a pipeline that is always full
  kMiniBatch,   // a mini-batch from its first forward to its last update, filling and draining
};

struct PlanRequest {
  int stages = 1;  // of plan_stages(); for plan_devices() 0 means any number
  /// Of plan_stages() where the chain is too short for all: fewer stages, but whole devices.
  int stages_per_device = 1;
  int micro_batches = 1;
  std::int64_t most_micro_batches = 0;  // that the mini-batch can be cut into; 0: any number
  PlannedSchedule schedule;
  int memory_units = 0;  // of the schedule, for the plan's file; 0: its own number
  std::optional<double> warm_up_tolerance;  // the same, where the schedule has one
  /// The schedule's devices where several stages share one, for the plan's file; 0: none do.
  int shared_devices = 0;
  /// [stages], where they are known already: what each stage holds, instead of the schedule's
  /// memory rule. Of plan_stages() and plan_with_cuts().
  std::vector<ScheduleLoad> loads;
  std::size_t memory_limit_bytes = 0;  // of each stage's device; 0: none
  TransferCost transfer;               // between any two devices where there is no topology
  double optimizer_bytes_per_parameter_byte = 2;  // Adam keeps two numbers per parameter
  double shared_bytes_per_parameter_byte = 0;     // of these, what replicas divide among themselves
  Recompute recompute = Recompute::kAuto;
  /// Links and relative speeds of the devices; stages lie on them in order. Without levels all
  /// devices are equal and joined by `transfer`.
  Topology topology;
  int devices = 0;          // for plan_devices(); 0: those of the topology, or else `stages`
  bool replication = true;  // plan_devices() may give a stage several devices
  Objective objective = Objective::kAuto;
  /// Relative; how far from the optimum plan_devices() may stop. At least 1e-6 for long chains on
  /// devices in groups or of different speed.
  double tolerance = 1e-9;
};

/// The memory of one stage, by purpose.
struct MemoryNeed {
  std::size_t weight_bytes = 0;  // all versions, and constants
  std::size_t gradient_bytes = 0;
  std::size_t optimizer_bytes = 0;
  std::size_t activation_bytes = 0;  // saved, of all micro-batches in flight
  std::size_t transient_bytes = 0;
  std::size_t total() const {
    return weight_bytes + gradient_bytes + optimizer_bytes + activation_bytes + transient_bytes;
  }
};

/// Elements [first, last) of the chain on one device, or on `replicas` devices that take the
/// micro-batches in turns. Times are per micro-batch.
struct StagePlan {
  int first = 0, last = 0;
  int first_device = 0;
  int replicas = 1;
  double forward_seconds = 0;   // once; with recompute it runs twice
  double backward_seconds = 0;  // input and weight gradients
  double step_seconds = 0;      // per optimizer step, spread over the micro-batches
  double transfer_seconds = 0;  // over both cuts, both directions
  /// One sum of the gradients over all replicas: once per update, which is once per mini-batch, or
  /// with pipedream once for every `replicas` micro-batches.
  double all_reduce_seconds = 0;
  double seconds = 0;  // all of it, shared by the replicas: what the slowest stage bounds
  std::size_t parameter_bytes = 0;
  std::size_t saved_bytes = 0;  // kept from forward to backward, one micro-batch
  int in_flight = 1;  // micro-batches between their forward and their backward, on each replica
  int weight_versions = 1;
  bool recompute = false;
  MemoryNeed memory;  // of each replica
};

struct Plan {
  std::vector<StagePlan> stages;
  double bottleneck_seconds = 0;  // of the slowest stage
  /// All micro-batches through a pipeline that fills and drains: the sum of all stages' times for
  /// one micro-batch and the slowest stage's time for the others and the update.
  double mini_batch_seconds = 0;
  double mini_batch_bound_seconds = 0;  // proven by plan_devices() for kMiniBatch, else 0
  double lower_bound_seconds = 0;       // no cut of any chain of these elements can be faster
  std::string lower_bound_reason;
  double planning_seconds = 0;           // that the search took
  std::vector<std::string> cut_reasons;  // one sentence for each cut, in order
  std::vector<std::string> notes;  // what a user should know: fewer stages than asked for, …

  /// bottleneck / lower bound - 1: 0 is perfect balance.
  double gap() const;
  /// The first element of stages 1, 2, …
  std::vector<int> cuts() const;
  /// All replicas of all stages.
  int devices() const;
};

/// Cuts the chain into request.stages stages of one device each so that the slowest stage is as
/// fast as possible; exact for this chain, the memory limit and the transfer costs included. Among
/// equally fast plans: the smallest peak memory of a device, then the fewest bytes sent, then the
/// earliest cuts. A chain shorter than the stages asked for gets one element per stage (and a
/// note). Error (kResource) when no cut fits into memory: names the stage, its need and settings
/// that fit.
Plan plan_stages(const ChainCosts& chain, const PlanRequest& request);

/// Distributes the chain over at most request.devices devices, in any number of stages (or exactly
/// request.stages), each on one device or on several that take the micro-batches in turns. Replicas
/// lie within one group of the topology, or are whole groups. For kThroughput exact, by bisection
/// of the slowest stage's time and the fewest devices that reach it; kMiniBatch says how far it may
/// be off: mini_batch_bound_seconds. Ties: fewest devices, smallest peak memory, fewest bytes sent,
/// earliest cuts. Says in the notes why devices stay idle. Error (kResource) as plan_stages(). Cf.
/// Pinar & Aykanat, "Fast optimal load balancing algorithms for 1D partitioning" (2004), and Harlap
/// et al., "PipeDream" (2019), for the replication.
Plan plan_devices(const ChainCosts& chain, const PlanRequest& request);

/// Where a stage lies: `count` devices from `first` on.
struct DeviceRange {
  int first = 0;
  int count = 1;
};

/// The plan with the given cuts (first elements of stages 1, 2, …, ascending): its numbers, or an
/// Error (kUsage) for impossible cuts, (kResource) for too little memory. `recompute` says it for
/// each stage instead of the request, and `devices` where each stage lies, if given; request.stages
/// is not read.
Plan plan_with_cuts(const ChainCosts& chain, const PlanRequest& request, std::span<const int> cuts,
                    std::span<const Recompute> recompute = {},
                    std::span<const DeviceRange> devices = {});

/// Puts the stages of a plan with the same cuts into another, which keeps its bounds and notes.
void take_stages(Plan from, Plan& to);

/// The plan with the same cuts, where the `wanted` stages recompute, too. Error (kResource) for too
/// little memory.
Plan with_recompute(const ChainCosts& chain, const PlanRequest& request, Plan plan,
                    const std::vector<bool>& wanted);

/// A plan of plan_devices() with its stages on devices 0, 1, … without a gap, and what they cost
/// there: those that it leaves idle come last.
Plan without_gaps(const ChainCosts& chain, const PlanRequest& request, Plan plan);

}  // namespace pipetrain
