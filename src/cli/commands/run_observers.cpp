#include "cli/commands/run_observers.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/units.h"

namespace pipetrain {

Watcher::Watcher(PipelineRun& run, const RunReports& reports, Signals& signals)
    : run_(run),
      reports_(reports),
      signals_(signals),
      slow_start_(run.network().profile().is_estimate || !run.network().has_predicted_steps()
                      ? 0
                      : run.network().predicted_step_seconds(),
                  run.network().threads()) {}

void Watcher::on_round(std::int64_t step, const Program& program, const RoundResult& result) {
  if (!run_.network().processes()) reports_.account.round(run_, program, result);
  reports_.recorder.round(step, program, result);
  if (!run_.network().asynchronous()) return;
  std::vector<double> busy;
  for (const double seconds : result.busy_seconds) busy.push_back(seconds / result.seconds);
  reports_.progress.utilisation(busy);
}

void Watcher::keep_answer() {
  if (signals_.stop() != 0 && !std::exchange(is_stopping_, true)) reports_.progress.keep_lines();
}

void Watcher::on_step(const StepReport& report) {
  keep_answer();
  if (reports_.supervision) reports_.supervision->note_step(report.step);
  reports_.folder.set_latest();
  reports_.events.step(report);
  reports_.journal.step(report);
  reports_.board.step(report);
  reports_.mlflow.step(report);
  reports_.progress.step(report);
  reports_.status.step(report);
  if (const std::string note = slow_start_.add(report.seconds); !note.empty()) {
    reports_.progress.clear();
    log_info("train", "note     {}", note);
  }
  if (signals_.take_status()) {
    reports_.progress.status(report);
    reports_.events.signal("USR2", "status");
  }
}

void Watcher::on_evaluation(const EvaluationReport& report) {
  keep_answer();
  reports_.events.evaluation(report);
  reports_.board.evaluation(report);
  reports_.mlflow.evaluation(report);
  reports_.progress.evaluation(report);
}

void Watcher::on_checkpoint(const SaveOutcome& outcome) {
  keep_answer();
  reports_.events.checkpoint(outcome);
  if (!outcome.written) {
    reports_.progress.clear();
    log_warning("checkpoint", "checkpoint not saved: {}", outcome.failure);
    return;
  }
  reports_.status.checkpoint(*outcome.written);
  log_debug("checkpoint", "saved {} ({}, {}, {})", outcome.written->path.string(),
            outcome.written->reason, bytes_text(outcome.written->bytes),
            seconds_text(outcome.written->seconds));
}

}  // namespace pipetrain
