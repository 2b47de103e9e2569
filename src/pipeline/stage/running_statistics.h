// The running mean and variance of a stage's BatchNorms, which the host keeps, and the batch
// moments merged since the last update.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "pipeline/stage/moments.h"
#include "pipeline/stage/stage_content.h"
#include "pipeline/stage/stage_memory.h"

namespace pipetrain {

class ReplicaGroup;

class RunningStatistics {
 public:
  /// Puts the addresses of those that steps read into `memory`. The executor outlives this.
  RunningStatistics(const CompiledStage& compiled, StageExecutor& executor, StageMemory& memory);

  /// Lets the next list of a variant read them as they are.
  void upload(const CompiledVariant& variant);
  /// Merges the moments that a micro-batch of `variant` has left where `addresses` say.
  void collect(int variant, const CompiledVariant& compiled, const StageAddresses& addresses);
  /// Applies what has been merged since the last call, or forgets it.
  void apply();
  void forget();
  /// Waits for the moments that have been collected, and merges them.
  void flush();
  /// Merges what all replicas of this process or, by the group, of all processes have flushed, in
  /// their order.
  void reduce(ReplicaGroup& group, int replica, std::span<const RunningStatistics* const> all);
  /// Whether the stage computes any.
  bool empty() const { return statistics_.empty(); }

  /// By name; false when there is none.
  bool read(const std::string& name, HostTensor& out) const;
  bool write(const std::string& name, const HostTensor& value);
  /// Adds them to the weights of a content; and back. Error (kUsage) when one is missing or of
  /// another type.
  void add_to(StageContent& content) const;
  void take_from(const StageContent& content);

 private:
  /// One BatchNorm, and the moments merged since the last update (Chan et al. 1983).
  struct Statistic {
    float* mean = nullptr;
    float* variance = nullptr;
    std::size_t channels = 0;
    double momentum = 0.9;
    bool of_weights = false;  // of a BatchNorm in Part::kPrepare
    Moments moments;
  };
  HostTensor& value_of(const Value& value);

  StageExecutor& executor_;
  std::map<std::string, HostTensor> values_;         // by name
  std::map<std::string, Statistic> statistics_;      // by the name of the mean
  std::vector<std::vector<Statistic*>> of_variant_;  // as StageSlice::statistics
  std::vector<BatchMoments> collected_;              // of a micro-batch: room for the next
  bool changed_ = true;                              // since they were uploaded
};

}  // namespace pipetrain
