// Warm-up: the number of forwards of each stage before its first backward, in which the 1F1B family
// differs.
#pragma once

#include <vector>

namespace pipetrain {

/// The longest that a schedule can be given.
constexpr int kMostWarmUp = 1 << 20;

/// Warm-up of 1F1B: with R devices from stage s on and r of them replicas of s, (R - 1) / r for
/// each replica; p-1-s where no stage is replicated (Narayanan et al., PipeDream, 2019, 3.2).
std::vector<int> standard_warm_up(const std::vector<int>& replicas);
std::vector<int> standard_warm_up(int stages);

/// Twice as much: hides transfers of up to half a micro-batch's compute each way.
std::vector<int> eager_warm_up(const std::vector<int>& replicas);

/// Warm-up of zero bubble with K micro-batches in memory: (K-1)(p-1-s)/(p-1).
std::vector<int> zero_bubble_warm_up(int stages, int memory_units);

/// Lowers a warm-up so that no device holds more than `micro_batches` at once.
std::vector<int> limited_warm_up(std::vector<int> warm, const std::vector<int>& replicas,
                                 int micro_batches);

/// The costs for which a warm-up is balanced. Times are per micro-batch.
struct WarmUpCosts {
  std::vector<double> forward_seconds;   // [stages]
  std::vector<double> backward_seconds;  // [stages], with the recompute where there is one
  std::vector<double> hop_seconds;       // [stages - 1], from stage s to s+1 and back, each way
  std::vector<int> replicas;             // [stages]; empty: one each
  std::vector<int>
      most_micro_batches;  // [stages], micro-batches a replica may hold; empty: any number
  /// Relative slowdown that is tolerated. At 0 perfectly balanced stages hold one more micro-batch
  /// for any latency, however small.
  double tolerance = 0.02;
};

/// Returns the least warm-up that keeps the slowest stage busy. In the steady state a micro-batch
/// goes from stage s down to j and back while W_s - W_j + 1 micro-batches pass stage s, so the time
/// between two micro-batches is at least that of the way over that number; the warm-up is chosen,
/// last stage first, so that no such way takes longer than the slowest stage. Where a stage cannot
/// hold so many micro-batches: the least warm-up for the shortest time that their number allows.
/// Never rises (see ScheduleOptions::warm). Throws Error(kInternal) if the costs do not fit
/// together.
std::vector<int> balanced_warm_up(const WarmUpCosts& costs);

/// Returns the seconds between two micro-batches that a warm-up allows once the pipeline is full:
/// the slowest stage, or the slowest way there and back.
double micro_batch_seconds(const WarmUpCosts& costs, const std::vector<int>& warm);

}  // namespace pipetrain
