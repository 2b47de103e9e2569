// The round in progress, as the threads of all devices see it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/index.h"
#include "optim/loss_scale.h"
#include "pipeline/program/program.h"
#include "pipeline/runtime/round.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/stage/stage.h"
#include "pipeline/transport/channel.h"

namespace pipetrain {

struct ProgramCut;

struct RoundState {
  /// On devices: when a unit has been written and read, as points of the streams of the stage's
  /// replica that runs it. One of each a unit, so that none is recorded again while others wait.
  struct UnitEvents {
    const Stream* stream = nullptr;
    std::unique_ptr<StreamPoint> forward, gradient, released;
  };

  /// `devices_here`: how many devices meet in the barrier.
  RoundState(const RuntimeSetup& setup, int devices_here);
  /// Begins a round; `cut`: where it is taken up again; null: at its beginning.
  void start(const Program& program, const ProgramCut* cut, UnitSource& source);

  StageMicroBatch& unit(int stage, int unit) { return units[at(stage)][at(unit)]; }
  const StageMicroBatch& unit(int stage, int unit) const { return units[at(stage)][at(unit)]; }
  /// Whether a unit's forward has run before the round was left, and was counted then.
  bool is_replayed(int stage, int unit) const;
  /// A stage is done with a unit; the last one gives its data back.
  void leave(int unit);

  const RuntimeSetup& setup;
  const Program* program = nullptr;
  const ProgramCut* cut = nullptr;
  UnitSource* source = nullptr;
  double start_seconds = 0;                          // steady_seconds()
  std::vector<std::vector<StageMicroBatch>> units;   // [stage][unit]
  std::vector<std::vector<UnitEvents>> unit_events;  // [stage][unit]; empty without devices
  std::vector<std::atomic<int>> stages_left;         // [unit]: stages here that still need its data
  std::vector<MicroBatch*> results;                  // [unit]; null: its loss is not computed here
  std::vector<std::vector<int>> group_version;       // [stage][group]

  // What all devices work out together at a gradient sync.
  Barrier barrier;
  std::vector<double> squared_norms;  // [parameters]
  double gradient_norm = 0;
  bool skips = false;  // the round's update is left out

  LossScale loss_scale;  // outlasts the round
};

}  // namespace pipetrain
