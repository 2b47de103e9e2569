// An asynchronous round in training: its mini-batches, what is saved inside, and the letters
// between its processes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "train/batch_source.h"
#include "train/round_saves.h"
#include "train/run_requests.h"

namespace pipetrain {

struct StreamCallbacks {
  RoundSaves::Callbacks saves;
  /// Of a step.
  std::function<double(std::uint64_t step)> learning_rate;
  /// In process 0, in the order of the steps, one call at a time.
  std::function<void(const StreamUnits::Done&)> done;
};

struct StreamEnd {
  std::int64_t batches = 0;       // of the round that are done
  RunEnd reason = RunEnd::kDone;  // kDone: the whole round
  RunRequests left;               // what other processes were asked for and nobody has decided on
  RoundResult result;
};

/// Runs the round that began at a step; `cut`: where it is taken up again; null: at its beginning.
StreamEnd run_stream(PipelineRun& run, Loader& loader, std::int64_t first_step,
                     const ProgramCut* cut, const StreamCallbacks& callbacks);

}  // namespace pipetrain
