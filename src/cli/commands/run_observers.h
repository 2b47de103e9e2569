// Observers of a training run: one forwards each step to all reports, the other only handles
// requests.
#pragma once

#include <cstdint>

#include "cli/commands/run_folder.h"
#include "cli/commands/supervise.h"
#include "cli/output/events.h"
#include "cli/output/journal.h"
#include "cli/output/mlflow.h"
#include "cli/output/slow_start.h"
#include "cli/output/status_file.h"
#include "cli/output/step_recorder.h"
#include "cli/output/tensorboard.h"
#include "cli/output/terminal.h"
#include "cli/output/time_shares.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace pipetrain {

/// Everything that reports the steps of a run.
struct RunReports {
  TimeAccount& account;
  Progress& progress;
  EventLog& events;
  TensorBoard& board;
  MlflowRun& mlflow;
  StepRecorder& recorder;
  StatusFile& status;
  Journal& journal;
  RunFolder& folder;
  Supervision* supervision;  // null: nobody restarts the run
};

/// Of process 0.
class Watcher final : public TrainingObserver {
 public:
  Watcher(PipelineRun& run, const RunReports& reports, Signals& signals);
  void on_round(std::int64_t step, const Program& program, const RoundResult& result) override;
  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const SaveOutcome& outcome) override;
  RunRequests requests() override { return {signals_.stop() != 0, signals_.take_save()}; }

 private:
  /// Has the answer to a signal stay on the terminal.
  void keep_answer();

  PipelineRun& run_;
  RunReports reports_;
  Signals& signals_;
  SlowStart slow_start_;
  bool is_stopping_ = false;
};

/// Of the other processes.
class Follower final : public TrainingObserver {
 public:
  explicit Follower(Signals& signals) : signals_(signals) {}
  RunRequests requests() override { return {signals_.stop() != 0, signals_.take_save()}; }

 private:
  Signals& signals_;
};

}  // namespace pipetrain
