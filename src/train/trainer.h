// The training loop: rounds of steps, validation between them, checkpoints after steps, a stop when
// the loss is not finite.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/runtime/runtime.h"
#include "train/evaluation.h"
#include "train/metrics.h"
#include "train/pipeline_run.h"
#include "train/replica_record.h"
#include "train/run_requests.h"
#include "train/saving.h"

namespace pipetrain {

class Commits;
class Snapshot;
struct ProgramCut;

struct StepReport {
  std::int64_t step = 0, total_steps = 0;  // step counts from 1
  double epoch = 0;                        // epochs done, fractional
  std::vector<DataPart> parts;             // where replicas do not wait: what the update has added
  double loss = 0;
  std::optional<double> accuracy;
  std::optional<double> gradient_norm;
  double learning_rate = 0;
  std::optional<double> loss_scale;  // where the precision has one that adapts
  std::string weights_digest;        // after this step, where it was computed twice
  bool skipped = false;              // gradients were not finite: the step changed nothing
  std::int64_t skipped_steps = 0;    // of the whole run
  double seconds = 0;                // of this step; 0 inside a round without a drain
  double data_seconds = 0;           // waited for data
  double samples_per_second = 0;
  std::optional<double> utilisation;  // model FLOP/s utilisation (MFU)
  std::optional<double> bubble;       // idle share of the devices in this step
  std::vector<double> stage_busy;     // busy fraction of the step by device
};

struct TrainingSummary {
  std::int64_t steps = 0;  // done in all, those before a resume included
  RunEnd end = RunEnd::kDone;
  std::filesystem::path last_checkpoint;  // empty: none was written
  double learning_rate = 0;               // of the last update
  /// Of a run that got to its end, but whose checkpoints could not be written; empty otherwise.
  std::string save_failure;
  double seconds = 0;
  double first_step_seconds = 0;
  double steady_step_seconds = 0;  // median after the first steps
  double steady_bubble = 0;
  double steady_utilisation = 0;   // 0: unknown
  int checkpoints = 0;             // that were written
  double save_seconds = 0;         // that training waited for them
  double write_seconds = 0;        // of background writes
  std::int64_t skipped_steps = 0;  // left out, those before a resume included
  std::optional<EvaluationReport> last_evaluation;
  std::optional<BestResult> best;
  UnmeasuredResults unmeasured;
  NamedTensors best_weights;  // of the best, where no checkpoint has them
};

/// Receives the events of a run, one call at a time.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  virtual void on_step(const StepReport&) {}
  /// A round of the runtime: `step` (from 1) is its mini-batch, or its first one.
  virtual void on_round(std::int64_t /*step*/, const Program&, const RoundResult&) {}
  virtual void on_evaluation(const EvaluationReport&) {}
  /// A checkpoint is on the disk, or could not be written.
  virtual void on_checkpoint(const SaveOutcome&) {}
  /// Called after every step, also by other threads; returns each request once.
  virtual RunRequests requests() { return {}; }
};

struct TrainingOptions {
  SaveSettings save;
  /// Peak FLOP/s of all devices, which may be measured by this call, after the first of several
  /// steps. 0 or empty: unknown.
  std::function<double()> peak_flops;
  double max_seconds = 0;               // 0: no limit
  double seconds_before = 0;            // since the first start, for a rate that goes by time
  const Checkpoint* resumed = nullptr;  // what has been restored into the run, and …
  const ProgramCut* cut = nullptr;      // … where its asynchronous round continues
  Snapshot* snapshot = nullptr;         // where the newest state is kept for a restart
  Commits* commits = nullptr;           // likewise by several processes
  std::int64_t verify_every = 0;        // steps of which the last is computed twice; 0: none is

  /// Seconds of the run before this process: those of training, or more where a failure lost some.
  double seconds_so_far() const {
    return std::max(seconds_before, resumed ? resumed->seconds : 0.0);
  }
};

/// Trains to the end of the run, or until that is requested. Error (kDiverged) names the
/// first tensor that is not finite, kResource when checkpoints cannot be written while steps are
/// left.
TrainingSummary train(PipelineRun& run, TrainingObserver& observer,
                      const TrainingOptions& options = {});

}  // namespace pipetrain
