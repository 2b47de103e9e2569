// pipetrain tune: which way to train is the fastest here. The simulator proposes, short real runs
// decide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "train/config.h"

namespace pipetrain {

/// What may be tried besides the run as it is given.
struct TuneScope {
  double budget_seconds = 60;
  int most_devices = 1;   // stages, replicas times stages
  bool schedules = true;  // the synchronous ones, otherwise the run's own alone
  bool threads = true;    // of a stage; another number may round otherwise
  bool recompute = true;
  // What changes what is trained:
  bool micro_batches = false;  // other numbers, which norms of micro-batches see; replicas too
  bool precision = false;      // bfloat16 beside single precision
  bool asynchronous = false;   // schedules that train with older weights
};

/// One way to train, predicted and perhaps measured.
struct TuneCandidate {
  RunConfig config;
  int devices = 1, threads = 1;
  std::int64_t micro_batches = 1;
  bool recompute = false;
  bool pareto = false;         // no other is predicted to be as fast in less memory
  double predicted = 0;        // samples per second
  double measured = 0;         // 0: not measured
  std::size_t peak_bytes = 0;  // of the device that holds most: predicted, then what was taken
  std::string failure;         // why it could not be measured
  std::vector<double> step_seconds;  // of the measured steps, warm ones
};

struct TuneResult {
  std::vector<TuneCandidate>
      candidates;  // those that were tried, in turn; the first is the run's own
  int best = 0;
  std::size_t considered = 0;  // ways that were simulated and fit
  double seconds = 0;
  double search_seconds = 0;  // of these before the first measurement
  bool out_of_time = false;
  bool interrupted = false;
};

class TuneObserver {
 public:
  virtual ~TuneObserver() = default;
  /// The search has begun: ways that were simulated so far, with so many threads a stage.
  virtual void on_search(int /*threads*/, std::size_t /*ways*/) {}
  /// A candidate has been measured, or has failed.
  virtual void on_candidate(int /*index*/, const TuneCandidate&) {}
  /// Whether somebody wants it to end; asked after every step.
  virtual bool stop() { return false; }
};

/// Measures the run as given, then the planner's candidates in the order of what is predicted,
/// those that are best for their memory first, while one of them may still win and time is left;
/// then the fastest ones once more in turns. Nothing is saved and no weight survives. Error where
/// the run as given cannot be made.
TuneResult tune(const RunConfig& config, const TuneScope& scope, TuneObserver& observer);

}  // namespace pipetrain
