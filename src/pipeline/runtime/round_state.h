// The state of the current round, shared by the threads of all devices.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/index.h"
#include "optim/loss_scale.h"
#include "pipeline/program/program.h"
#include "pipeline/runtime/nonfinite_log.h"
#include "pipeline/runtime/round.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/stage/stage.h"
#include "pipeline/transport/channel.h"

namespace pipetrain {

struct ProgramCut;

struct RoundState {
  /// On GPUs: when a micro-batch has been written and read, as points of the streams of the replica
  /// that runs it. One of each per micro-batch, so that none is recorded again while others wait.
  struct MicroBatchEvents {
    const Stream* stream = nullptr;
    std::unique_ptr<StreamPoint> forward, gradient, released;
  };

  /// `devices_here`: how many devices meet in the barrier.
  RoundState(const RuntimeSetup& setup, int devices_here);
  /// Begins a round; `cut`: where it resumes; null: at its beginning.
  void start(const Program& program, const ProgramCut* cut, MicroBatchSource& source);

  StageMicroBatch& micro_batch(int stage, int micro_batch) {
    return micro_batches[at(stage)][at(micro_batch)];
  }
  const StageMicroBatch& micro_batch(int stage, int micro_batch) const {
    return micro_batches[at(stage)][at(micro_batch)];
  }
  /// Whether a micro-batch's forward ran, and was counted, before the cut.
  bool is_replayed(int stage, int micro_batch) const;
  /// Ends the round after this many micro-batches. Returns the cut there.
  const ProgramCut& end_after(int micro_batches_done);
  /// A stage is done with a micro-batch; the last one releases its data.
  void leave(int micro_batch);

  const RuntimeSetup& setup;
  const Program* program = nullptr;
  const ProgramCut* cut = nullptr;
  std::unique_ptr<const ProgramCut> early_end;  // null: the round runs the whole program
  MicroBatchSource* source = nullptr;
  double start_seconds = 0;                                 // steady_seconds()
  std::vector<std::vector<StageMicroBatch>> micro_batches;  // [stage][micro-batch]
  std::vector<std::vector<MicroBatchEvents>>
      micro_batch_events;                     // [stage][micro-batch]; empty without devices
  std::vector<std::atomic<int>> stages_left;  // [micro-batch]: stages here that still need its data
  std::vector<MicroBatch*> results;           // [micro-batch]; null: its loss is not computed here
  std::vector<std::vector<int>> group_version;  // [stage][group]

  // Results of the gradient sync, shared by all devices.
  Barrier barrier;
  std::vector<double> squared_norms;  // [parameters]
  double gradient_norm = 0;
  bool skips = false;  // the round's update is skipped

  LossScale loss_scale;  // kept between rounds
  bool notes_sends = false;
  NonfiniteLog nonfinite;  // of all rounds
  bool finds_nonfinite = false;

 private:
  std::mutex mutex_;  // of early_end
};

}  // namespace pipetrain
