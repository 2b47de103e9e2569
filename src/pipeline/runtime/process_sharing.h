// What processes that run one program together tell each other outside its instructions. Decisions
// are made by all alike, from the same numbers in the same order, so that no bit depends on how
// many processes there are.
#pragma once

#include <string>
#include <vector>

#include "pipeline/runtime/round.h"
#include "pipeline/runtime/round_state.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/runtime/stage_replicas.h"

namespace pipetrain {

class ProcessSharing {
 public:
  ProcessSharing(const RuntimeSetup& setup, StageReplicas& replicas, RoundState& round)
      : setup_(setup), replicas_(replicas), round_(round) {}

  /// What the stages hold, for all to know; and nobody starts before all are ready.
  void share_memory();
  const ArenaBytes& memory(int stage) const { return memory_[at(stage)]; }

  // At a gradient sync, where all devices of a process wait for one that calls these. Nothing with
  // one process.

  /// Tied weights get the gradients that stages of other processes have computed.
  void exchange_tied_gradients();
  /// Everybody gets the norms of all gradients, which are then added up in one order everywhere.
  void share_norms();

  /// Losses of the micro-batches and the devices' times, for all to know.
  void share_results(RoundResult& result);
  /// Runtime::contents(), Runtime::first_nonfinite().
  std::vector<StageContent> contents() const;
  std::string first_nonfinite() const;

 private:
  bool has(int process, int stage) const;
  void hand_on_accumulator(int accumulation, int from, int to);

  const RuntimeSetup& setup_;
  StageReplicas& replicas_;
  RoundState& round_;
  std::vector<ArenaBytes> memory_;  // [stage]
};

}  // namespace pipetrain
