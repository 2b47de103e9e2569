// The replicas of this process that do not wait for each other: a thread and a runtime for each.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "train/part_worker.h"
#include "train/replica_updates.h"

namespace pipetrain {

class LocalReplicas {
 public:
  /// `uses_run`: the first replica computes on the run's runtime, which is not needed otherwise.
  LocalReplicas(PipelineRun& run, bool uses_run);
  /// Waits for the parts in work.
  ~LocalReplicas();
  LocalReplicas(const LocalReplicas&) = delete;
  LocalReplicas& operator=(const LocalReplicas&) = delete;

  const ReplicaRange& range() const { return range_; }
  /// Gives an idle replica a part, to be computed from `weights`. Those that are left out stay as
  /// they were.
  void start(int replica, const DataPart& part, const NamedTensors& weights);
  /// A finished replica and its gradient. take() returns them in the order of completion, or
  /// nothing if none has finished, and rethrows the exception of a replica.
  struct Done {
    int replica = 0;
    PartGradient gradient;
  };
  std::optional<Done> take();
  /// Waits until one is done, but no longer than that.
  void wait(std::chrono::milliseconds most);

 private:
  struct Replica {
    std::unique_ptr<PartWorker> worker;
    std::optional<DataPart> part;  // to be computed
    std::jthread thread;
  };
  void work(int replica, const std::stop_token& stop);

  ReplicaRange range_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Done> done_;
  std::exception_ptr failure_;
  std::vector<Replica> replicas_;  // last: their threads end before what they use
};

}  // namespace pipetrain
