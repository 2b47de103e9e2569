// The replicas of all stages of a runtime. Those of this process are compiled; of the others only
// the device is known.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/index.h"
#include "pipeline/program/program.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/stage/stage.h"
#include "pipeline/stage/stage_content.h"

namespace pipetrain {

struct ProgramCut;
class SharedWork;
class Transport;

struct StageReplica {
  int device = 0;
  std::unique_ptr<Stage> stage;  // null: another process has it
  int base_version = 0;          // copy of the weights that holds version 0 of the round
  bool accumulating = false;     // the step's first micro-batch has written the gradients
  std::uint64_t leaves = 0;      // of the tree of sums, as bits: those that have gradients
  std::int64_t updates = 0;      // made so far: what bias corrections of asynchronous rules count
  int adding_left = 0;           // micro-batches still to be added before the next update
  /// The step whose batched gradients are still to be searched for values that are not finite.
  std::optional<std::uint64_t> deferred_step;
  int forwards = 0, backwards = 0;  // of the round so far
  int updated = 0;  // micro-batches that the asynchronous round's updates so far cover
  std::vector<int> forward_entry, gradient_entry;  // micro-batch that holds each entry; -1: none
};

class StageReplicas {
 public:
  explicit StageReplicas(const RuntimeSetup& setup);
  ~StageReplicas();
  StageReplicas(const StageReplicas&) = delete;
  StageReplicas& operator=(const StageReplicas&) = delete;

  int stages() const { return static_cast<int>(replicas_.size()); }
  std::vector<StageReplica>& of(int stage) { return replicas_[at(stage)]; }
  const std::vector<StageReplica>& of(int stage) const { return replicas_[at(stage)]; }
  /// The replica of a stage that a device holds.
  StageReplica& on(int stage, int device) {
    return replicas_[at(stage)][at(program_->replica_on(stage, device))];
  }
  const StageReplica& on(int stage, int device) const {
    return replicas_[at(stage)][at(program_->replica_on(stage, device))];
  }
  /// Calls `body(replica, stage)` for everything on a device.
  template <typename Body>
  void each_on(int device, const Body& body) {
    for (int s = 0; s < stages(); ++s) {
      for (StageReplica& replica : of(s)) {
        if (replica.device == device) body(replica, s);
      }
    }
  }
  /// The first local replica of each stage; null: none.
  std::vector<Stage*> first_here() const;
  std::vector<Stage*> all(int stage) const;

  /// Compiles a device's stages; in its thread.
  void compile(int device, const StageStreams& streams);
  /// Connects replicas with the transport's all-reduce. `streams`: by device.
  void join(Transport& transport, const std::vector<Stream*>& streams);
  /// Lets idle devices run tasks of others, where their stages share host memory.
  void share_work();
  SharedWork* shared_work() const { return shared_work_.get(); }
  /// The largest workspace of an idle device.
  Workspace free_workspace(int device) const;

  void start_round(const Program& program, const ProgramCut* cut);
  /// `early_end`: where the round ended; null: with its program.
  void end_round(const ProgramCut* early_end);
  /// Which block of a replica's weights holds a version of the round.
  int block_of(const StageReplica& replica, int stage, int version) const;
  int group_of(const Instruction& instruction) const;
  /// The leaf of a micro-batch among those of its replica, in the tree of sums; 0: there is none.
  int leaf_of(const Instruction& instruction) const;
  /// How many micro-batches a replica adds to its gradients for one update.
  int micro_batches_to_add(int stage, int replica, int group) const;

  // Weights and gradients by name, and the state of whole stages, as in Runtime.
  HostTensor read(const std::string& name) const;
  bool write(const std::string& name, const HostTensor& value);
  HostTensor read_gradient(const std::string& name) const;
  void exchange_averages();
  void release_activations();
  StageContent content(int stage, int version) const;
  /// The newest weights of a stage, as its first replica has them.
  std::map<std::string, HostTensor> weights(int stage) const;
  /// What the replicas here keep of a stage's optimizer, where they share the updates.
  StageContent states(int stage) const;
  void restore(int stage, const StageContent& content);
  std::vector<KernelTimes> take_kernel_times();
  /// The first weight or gradient of the stages here that is not finite.
  std::optional<NonfiniteValue> first_nonfinite() const;

 private:
  void count_holders();
  void note_copy(const std::string& name);

  const RuntimeSetup& setup_;
  const Program* program_;
  std::vector<std::vector<StageReplica>> replicas_;  // [stage][replica]
  std::unique_ptr<SharedWork> shared_work_;          // null: idle devices do not help others
  std::mutex holders_mutex_;
  std::map<std::string, int> holders_;  // stages here that still have to copy a parameter
  bool in_round_ = false;               // since start_round(), also after a failure
};

}  // namespace pipetrain
