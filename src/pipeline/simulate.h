// Times a program before it runs: the same lists, the same records, given what each stage and link
// costs.
#pragma once

#include <limits>
#include <vector>

#include "pipeline/event.h"
#include "pipeline/program.h"

namespace pipetrain {

/// Seconds of one full unit on one stage.
struct StageSeconds {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double recompute = 1;
  double update = 0;
};

/// A transfer takes its bytes over the bandwidth on the channel, and arrives one latency later.
struct LinkCost {
  double latency_seconds = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

/// How transfers meet compute.
enum class TransferMode {
  /// Lanes: sends are buffered and receives posted early; each channel (device to device,
  /// activations
  /// or gradients) is in order, has its own bandwidth, and only the consumer waits.
  kBuffered,
  /// One lane: a send and its receive block both devices, in list order, until the data is over.
  kRendezvous,
};

struct Costs {
  std::vector<StageSeconds> stage;  // [stages]
  std::vector<double> unit_scale;   // [units], size of a unit against a full one; empty: all 1
  double gradient_sync_seconds = 0;
  LinkCost link;                    // where edge_link is empty
  std::vector<LinkCost> edge_link;  // [edges] or empty
  TransferMode transfers = TransferMode::kBuffered;
};

struct Simulation {
  /// [devices][instructions], in the order of the lists.
  std::vector<std::vector<Event>> events;
  double makespan = 0;  // until every device is done
  /// Seconds from round to round when rounds are chained without a barrier. A kStash program still
  /// drains between two rounds; its steady rate is unit_period.
  double period = 0;
  /// Seconds between the starts of a unit and the next on the first stage, late in the round, where
  /// the pipeline is full. 0 where the round is too short to tell.
  double unit_period = 0;
  std::vector<double> busy, idle;  // [devices], idle = makespan - busy; transfers are not busy time
  double bubble = 0;               // idle over devices times makespan
  std::vector<int> peak_live;      // [stages], units whose activations are held at once
};

/// Equal costs for every stage.
Costs uniform_costs(const Program& program, const StageSeconds& seconds, const LinkCost& link = {});

/// Times one round, and chained rounds for the period. A program that is not lowered is timed too:
/// its edges then cost their time, but share no channel. Throws Error(kInternal) if costs do not
/// fit the program or the program can never finish.
Simulation simulate(const Program& program, const Costs& costs);

/// The events of simulate() alone.
std::vector<std::vector<Event>> time_round(const Program& program, const Costs& costs);

}  // namespace pipetrain
