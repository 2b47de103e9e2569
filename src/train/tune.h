// pipetrain tune: finds the fastest configuration on this machine. The simulator proposes
// candidates, short runs measure them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "partition/topology.h"
#include "train/config.h"

namespace pipetrain {

class ProcessGroup;

/// What may be changed in the given run.
struct TuneScope {
  double budget_seconds = 60;
  int most_devices = 1;   // stages, replicas times stages
  bool schedules = true;  // synchronous ones; otherwise only that of the run
  bool threads = true;    // per stage; another number may change the rounding
  bool recompute = true;
  // Settings that change the results:
  bool micro_batches = false;             // their number, which batch norms depend on; replicas too
  bool precision = false;                 // bfloat16 beside single precision
  bool asynchronous = false;              // schedules that train with older weights
  std::optional<Topology> topology = {};  // the links, where no option names one
};

/// A candidate configuration, predicted and perhaps measured.
struct TuneCandidate {
  RunConfig config;
  int devices = 1, threads = 1;
  std::int64_t micro_batches = 1;
  bool recompute = false;
  bool pareto = false;               // Pareto-optimal in predicted time and memory
  double predicted = 0;              // samples per second
  double measured = 0;               // 0: not measured
  std::size_t peak_bytes = 0;        // of the fullest device: predicted, then allocated
  std::string failure;               // why it could not be measured
  std::vector<double> step_seconds;  // of the measured steps, warm ones
};

/// Whether the whole network is one stage: all synchronous schedules are then the same run.
bool is_one_stage(const TuneCandidate& candidate);

struct TuneResult {
  /// In the order of measurement; the first is the run as given.
  std::vector<TuneCandidate> candidates;
  int best = 0;
  std::size_t considered = 0;  // configurations that were simulated and fit
  double seconds = 0;
  double search_seconds = 0;  // of these before the first measurement
  bool out_of_time = false;
  bool interrupted = false;
};

class TuneObserver {
 public:
  virtual ~TuneObserver() = default;
  /// Progress of the search: configurations simulated so far, with up to that many threads per
  /// stage.
  virtual void on_search(int /*threads*/, std::size_t /*ways*/) {}
  /// A candidate has been measured, or has failed.
  virtual void on_candidate(int /*index*/, const TuneCandidate&) {}
  /// Whether to stop; called after every step.
  virtual bool stop() { return false; }
};

/// Measures the run as given, then the planner's candidates by predicted speed, Pareto-optimal ones
/// first, while one of them may still win and time is left; then the fastest ones once more,
/// alternating. Nothing is saved. Error if the run as given fails. `processes`: each runs its part
/// of every candidate, those other than 0 in follow_tune(); null: a single process.
TuneResult tune(const RunConfig& config, const TuneScope& scope, TuneObserver& observer,
                ProcessGroup* processes = nullptr);
/// `stop`: whether this process has been asked to stop.
void follow_tune(const RunConfig& config, ProcessGroup& processes,
                 const std::function<bool()>& stop);

}  // namespace pipetrain
