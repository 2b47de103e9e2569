// A reference runtime: runs any program in one thread and keeps every weight version, without
// arena, channels or overlap. It shares only the kernels and the formulas of optimizer and running
// statistics with the runtime. Equal bits therefore show that memory planning, transfers, weight
// stashing and threads change nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/stage/moments.h"
#include "pipeline/stage/slice.h"

namespace pipetrain {

class Oracle {
 public:
  /// The arguments are the runtime's.
  Oracle(std::vector<RuntimeVariant> variants, int stages, const RuntimeOptions& options);

  /// Runs one round. Error (kInternal) when the program cannot end.
  void run(const Program& program, MicroBatchSource& source);
  /// A parameter or running statistic, as the first stage that holds it sees it.
  HostTensor read(const std::string& name) const;
  /// The gradient that the last update of a parameter was made with, likewise.
  HostTensor read_gradient(const std::string& name) const;

 private:
  using Values = std::map<ValueId, HostTensor>;
  /// Per replica of a stage; after a reduce the first one holds the sums.
  struct ReplicaState {
    std::map<int, HostTensor> accumulators;
    std::map<int, HostTensor> batched;
    int batched_micro_batches = 0;
    bool has_batch_sums = false;  // of the step
    std::map<std::string, Moments> moments;
    bool accumulating = false;
  };
  /// The state of a stage: one accumulator per replica.
  struct StageState {
    std::map<int, std::map<std::string, HostTensor>> weights;  // version → name → content
    std::vector<ReplicaState> replicas;
    std::map<int, HostTensor> gradients;  // parameter → after finish
    std::map<std::string, std::pair<HostTensor, HostTensor>> optimizer;
    std::int64_t updates = 0;
    // With a tree of sums: of each leaf that has a micro-batch, whichever replica ran it.
    std::map<int, std::map<int, HostTensor>> leaves;
    std::map<int, std::map<std::string, Moments>> leaf_moments;
  };
  struct MicroBatchState {
    MicroBatch* data = nullptr;
    Values values;
  };

  bool is_ready(const Program& program, const Instruction& instruction) const;
  void execute(const Program& program, const Instruction& instruction, int device,
               MicroBatchSource& source);
  void run_forward(const Program& program, const Instruction& instruction, ReplicaState& replica,
                   MicroBatchSource& source);
  void run_backward(const Instruction& instruction, ReplicaState& replica);
  void gather(const Instruction& instruction, ReplicaState& replica);
  void add_batched(int stage, ReplicaState& replica);
  void complete_gradients(int stage);
  void run_update(const Program& program, const Instruction& instruction, MicroBatchSource& source);
  void reduce(int stage);
  HostTensor content(int stage, int version, const MicroBatchState* micro_batch, int variant,
                     ValueId id, Values& local);
  void run_nodes(int stage, int version, MicroBatchState& micro_batch,
                 const std::vector<NodeId>& nodes, Values& results);
  void collect_statistics(int stage, int version, MicroBatchState& micro_batch,
                          std::map<std::string, Moments>& all);
  void join_leaves(StageState& stage, int leaf, int stride);
  void apply_statistics(ReplicaState& replica);
  void finish(int stage, int version);
  void synchronise();

  RuntimeOptions options_;
  std::vector<RuntimeVariant> variants_;
  std::vector<Slices> slices_;
  std::vector<StageState> stages_;
  std::map<std::string, HostTensor> running_;
  std::vector<MicroBatchState> micro_batches_;
  std::vector<int> stages_left_;             // [micro-batch]: stages that still need its data
  std::map<std::pair<int, int>, int> done_;  // (stage, micro-batch) → 1 forward, 2 backward
  double gradient_scale_ = 1;
  LossScale loss_scale_;
  bool skips_ = false;                           // the round's updates are skipped
  std::vector<std::vector<int>> group_version_;  // [stage][group]
};

}  // namespace pipetrain
