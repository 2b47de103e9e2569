// Exchanges between the processes of a run outside its instructions. All processes make the same
// decisions from the same numbers in the same order, so no bit depends on the number of processes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/runtime/round.h"
#include "pipeline/runtime/round_state.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/runtime/stage_replicas.h"

namespace pipetrain {

class ProcessSharing {
 public:
  ProcessSharing(const RuntimeSetup& setup, StageReplicas& replicas, RoundState& round);

  /// Shares the memory use of all stages: that of the replica with the most. Also a barrier: no
  /// process starts before all are ready.
  void share_memory();
  const ArenaBytes& memory(int stage) const { return memory_[at(stage)]; }

  // Called at a gradient sync by one device of each process while its others wait. No-ops with one
  // process.

  /// Exchanges gradients of tied weights between processes.
  void exchange_tied_gradients();
  /// Shares the norms of all gradients, which every process then adds up in the same order.
  void share_norms();

  /// Shares the losses of a synchronous round's micro-batches, the devices' times and the notes.
  void share_results(RoundResult& result);
  void set_notes(RoundNotes notes) { notes_ = std::move(notes); }
  /// Runtime::contents(), Runtime::first_nonfinite().
  std::vector<StageContent> contents() const;
  /// Runtime::weights_of_others().
  std::map<std::string, HostTensor> weights_of_others() const;
  /// Runtime::own_contents().
  std::vector<StageContent> own_contents() const;
  std::optional<NonfiniteValue> first_nonfinite() const;

 private:
  bool has(int process, int stage) const;
  void hand_on_accumulator(int accumulation, int from, int to);

  const RuntimeSetup& setup_;
  StageReplicas& replicas_;
  RoundState& round_;
  std::vector<int> process_of_norm_;  // [parameters], with processes; -1: held by no stage
  std::vector<ArenaBytes> memory_;    // [stage]
  RoundNotes notes_;
};

}  // namespace pipetrain
