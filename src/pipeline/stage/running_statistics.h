// The running mean and variance of a stage's BatchNorms, kept on the host, and the batch moments
// merged since the last update.
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
  /// Registers the addresses of statistics that steps read in `memory`. The executor must outlive
  /// this.
  RunningStatistics(const CompiledStage& compiled, StageExecutor& executor, StageMemory& memory);

  /// Uploads changed statistics before the next list of a variant.
  void upload(const CompiledVariant& variant);
  /// Merges the moments of a micro-batch of `variant` at `addresses`.
  void collect(int variant, const CompiledVariant& compiled, const StageAddresses& addresses);
  /// Applies or discards what has been merged since the last call.
  void apply();
  void forget();
  /// Waits for collected moments and merges them, those of all leaves too.
  void flush();
  /// Merges the flushed moments of all replicas, through the group also of other processes, in
  /// replica order.
  void reduce(ReplicaGroup& group, int replica, std::span<const RunningStatistics* const> all);
  /// Whether the stage has any.
  bool empty() const { return statistics_.empty(); }

  /// By name; false when there is none.
  bool read(const std::string& name, HostTensor& out) const;
  bool write(const std::string& name, const HostTensor& value);
  /// Saves them with the weights of a content, and restores them. Error (kUsage) when one is
  /// missing or of another type.
  void add_to(StageContent& content) const;
  void take_from(const StageContent& content);

 private:
  /// One BatchNorm, and the moments merged since the last update (Chan et al. 1983).
  struct Statistic {
    float* mean = nullptr;
    float* variance = nullptr;
    std::size_t channels = 0;
    double momentum = 0.9;
    bool of_weights = false;       // of a BatchNorm in Part::kPrepare
    std::vector<Moments> moments;  // by leaf of the tree of sums; the first ends with all
  };
  void join_leaves();
  HostTensor& value_of(const Value& value);

  StageExecutor& executor_;
  std::map<std::string, HostTensor> values_;         // by name
  std::map<std::string, Statistic> statistics_;      // by the name of the mean
  std::vector<std::vector<Statistic*>> of_variant_;  // as StageSlice::statistics
  std::vector<BatchMoments> collected_;              // of a micro-batch: room for the next
  bool changed_ = true;                              // since they were uploaded
};

}  // namespace pipetrain
