// Predicts the timing of a program from the costs of each stage and link.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "pipeline/program/event.h"
#include "pipeline/program/program.h"

namespace pipetrain {

/// A part of a sum over replicas that begins as soon as all have completed its gradients.
struct ReduceBucket {
  double ready = 1;    // fraction of a replica's last backward after which the bucket is complete
  double seconds = 0;  // one bucket after the other
  double latency = 0;  // until its sum is there, while the next ones are under way
  std::int64_t bytes = 0;
};

/// Seconds of one full micro-batch on one stage.
struct StageSeconds {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double recompute = 1;
  double update = 0;
  double reduce = 0;  // sum over all replicas, once a group (all_reduce_seconds())
  /// Where parts of the sum begin before the reduce, in the order of the backward; empty: nowhere.
  std::vector<ReduceBucket> buckets;
};

/// The seconds that an instruction of this kind takes.
double seconds_of(const StageSeconds& stage, Kind kind);

/// A transfer takes its bytes over the bandwidth on the channel, and arrives one latency later.
struct LinkCost {
  double latency_seconds = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

/// How transfers interact with compute.
enum class TransferMode {
  /// Lanes: sends are buffered and receives posted early; each channel (device to device,
  /// activations or gradients) is in order, has its own bandwidth, and only the consumer waits.
  kBuffered,
  /// One lane: a send and its receive block both devices, in list order, until the data is over.
  kRendezvous,
};

/// CPU devices are threads of one machine: which of them share a core, and how long it takes until
/// a sleeping one runs again.
struct CoreSharing {
  std::vector<int> core;      // [devices]: its core, or the first of them; empty: not simulated
  std::vector<int> group;     // [cores]: devices move within a group only; empty: all one group
  bool moves = false;         // a woken device moves to an idle core if its own is busy
  double wake_seconds = 0;    // on an idle core
  double notify_seconds = 0;  // spent by the device that wakes another one on an idle core
  double switch_seconds = 0;  // on a core that another device leaves
  double turn_seconds = std::numeric_limits<double>::infinity();  // while others wait for the core
};

/// Devices that compute on the same cores.
struct CoreGroup {
  int cores = 1;
  std::vector<int> devices;
};

/// Returns how many times as long replicas in several processes sum gradients as two processes
/// alone, with which links are measured, because processes take turns copying and adding on a core.
/// This applies where the replicas share cores that are all busy, so that a sum takes as long
/// during the backward as after it. Otherwise, and if replicas are on different hosts, returns 0: a
/// sum overlaps the backward. `devices`: those of the replicas; `process`: the process of each.
double turns_of_sums(std::span<const CoreGroup> groups, std::span<const int> devices,
                     std::span<const int> process);

struct Costs {
  std::vector<StageSeconds> stage;  // [stages]
  std::vector<double>
      micro_batch_scale;  // [micro-batches], size of a micro-batch against a full one; empty: all 1
  std::vector<double> device_scale;  // [devices], seconds against those of `stage`; empty: all 1
  double gradient_sync_seconds = 0;
  std::vector<int> process;            // [devices], in which process each is; empty: all in one
  std::vector<int> host;               // [processes], on which each is; empty: each on its own
  double results_seconds = 0;          // until another process knows the results of a step,
  double results_on_host_seconds = 0;  // and one of the same host
  LinkCost link;                       // where edge_link is empty
  std::vector<LinkCost> edge_link;     // [edges] or empty
  TransferMode transfers = TransferMode::kBuffered;
  CoreSharing cores;
};

/// Idle seconds of a device by phase.
struct IdleSeconds {
  double warm_up = 0;  // before its first backward (of forwards alone: its first forward)
  double steady = 0;   // between the two
  double drain = 0;    // after its last forward
};

struct Simulation {
  /// [devices][instructions], in the order of the lists. Empty if they were not requested.
  std::vector<std::vector<Event>> events;
  std::vector<BucketEvent> buckets;  // of the round; empty as `events`
  double makespan = 0;               // until every device is done
  /// Seconds per round when rounds follow each other without a barrier, in several processes as
  /// soon as each knows the results of all. An asynchronous program still drains between two
  /// rounds; its steady-state rate is micro_batch_period. 0 if not requested.
  double period = 0;
  /// Seconds between the starts of a micro-batch and the next on the first stage, late in the
  /// round, where the pipeline is full. 0 where the round is too short to tell: the pipeline is not
  /// full before its second half, or replicas do not have two turns.
  double micro_batch_period = 0;
  std::vector<double> busy, idle;  // [devices], idle = makespan - busy; transfers are not busy time
  std::vector<IdleSeconds> idle_split;  // [devices], sums to idle
  double bubble = 0;                    // idle over devices times makespan
  std::vector<int>
      peak_live;  // [stages], micro-batches whose activations one replica holds at once
};

struct SimulateOptions {
  bool keep_events = true;  // 24 bytes an instruction
  /// Rounds to simulate for the period, at most; fewer once the period is constant. 1: none.
  int rounds = 24;
};

/// Equal costs for every stage.
Costs uniform_costs(const Program& program, const StageSeconds& seconds, const LinkCost& link = {});

/// Seconds to sum `bytes` over replicas in a ring: each sends 2(r-1)/r of them in 2(r-1) steps.
double all_reduce_seconds(std::int64_t bytes, int replicas, const LinkCost& link);

/// Has the devices of each group share its cores, which are evenly loaded, with the times of
/// `waking`. Throws Error(kInternal) if costs or devices are not those of the program.
void share_cores(const Program& program, const CoreSharing& waking,
                 std::span<const CoreGroup> groups, Costs& costs);
/// Has all devices share `cores`. Links have no part of their own in the times of `waking`.
void share_cores(const Program& program, const CoreSharing& waking, int cores, Costs& costs);

/// Times one round, and chained rounds for the period, each in O(instructions). A program that is
/// not lowered is timed too: its edges then cost their time, but share no channel. Channels deliver
/// in the order of the sends, which check() proves to be that of the receives. Throws
/// Error(kInternal) if costs do not fit the program or the program can never finish.
Simulation simulate(const Program& program, const Costs& costs,
                    const SimulateOptions& options = {});

/// The events of simulate() alone.
std::vector<std::vector<Event>> time_round(const Program& program, const Costs& costs);

/// Every instruction takes its time multiplied by exp(s z - s²/2), z standard normal: log-normal
/// with mean 1. Drawn from (seed, sample, device, instruction) alone.
struct Jitter {
  double compute = 0.05;  // s of compute, reduces, syncs and updates
  double transfer = 0;    // s of transfers
  std::uint64_t seed = 1;
  int samples = 100;
};

/// Makespans of the samples, in seconds; p50 and p95 by nearest rank.
struct JitterResult {
  std::vector<double> makespan;  // [samples], rising
  double mean = 0, p50 = 0, p95 = 0;
};

/// Times a round once for each sample. Throws Error(kInternal) as simulate() does, or if there is
/// no sample or a negative s.
JitterResult simulate_jitter(const Program& program, const Costs& costs, const Jitter& jitter);

}  // namespace pipetrain
