#include "cli/commands/run_messages.h"

#include "base/log.h"
#include "base/units.h"
#include "cli/output/terminal.h"
#include "passes/parameters.h"
#include "processes/process_group.h"
#include "profile/machine.h"
#include "train/resume.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

void introduce_model(const Options& options, const Session& session) {
  const TrainingGraph& graph = session.graph();
  std::int64_t parameters = 0;
  for (const Parameter& parameter : graph.parameters)
    parameters += graph.graph[parameter.value].type.count();
  log_info("train", "pipetrain {} · {} · {} trained numbers in {} tensors · {} nodes · opset {}",
           PIPETRAIN_VERSION, fs::path(options.run.model.path).filename().string(), parameters,
           graph.parameters.size(), session.chain().order.size(), session.model().file.opset);
  for (const std::string& warning : session.model().file.warnings)
    log_warning("onnx", "{}", warning);
  for (const std::string& note : graph.notes) log_info("train", "note     {}", note);
  if (const std::string words = words_on_doubtful(session.model().rules); !words.empty())
    log_info("train", "note     {}", words);
  if (session.data().synthetic) {
    log_info(
        "train",
        "note     no --data: synthetic samples measure the speed; the weights will not be useful");
  }
  log_info("train", "{}", session.data().description);
  log_info("train", "loss     {} on output \"{}\"", graph.loss.task, printable(graph.loss.output));
  const auto named = static_cast<std::int64_t>(session.data().class_names.size());
  if (named > 1 && named < graph.loss.classes && options.num_classes == 0) {
    log_info("train",
             "note     the data have {} classes, the model {}: --num-classes {} would replace its "
             "last layer",
             named, graph.loss.classes, named);
  }
}

void introduce_batch(const Options& options, const Session& session) {
  log_info("train", "batch    {} = {} micro-batch{} x {} sample{}",
           options.run.optimization.batch_size, session.micro_batches(),
           session.micro_batches() == 1 ? "" : "es", session.micro_batch(),
           session.micro_batch() == 1 ? "" : "s");
  for (const OnnxValue& input : session.model().model.inputs) {
    if (input.dims.empty() || input.dims[0].value <= 0 || session.micro_batches() < 2) continue;
    log_info(
        "train",
        "note     the model takes {} sample{} at a time, as it was exported; with a free first "
        "dimension (dynamic_shapes or dynamic_axes in PyTorch) it trains faster",
        input.dims[0].value, input.dims[0].value == 1 ? "" : "s");
    break;
  }
}

void introduce_plan(const Options& options, const Session& session) {
  const bool one_each = session.stages() == session.devices();
  log_info("train", "device   {} {}{} x {} thread{}{}{}", session.devices(),
           one_each ? "stage" : "device", session.devices() == 1 ? "" : "s", session.threads(),
           session.threads() == 1 ? "" : "s",
           one_each ? "" : fmt::format(", {} stages", session.stages()),
           session.processes() ? fmt::format(", in {} processes ({})", session.processes()->size(),
                                             session.processes()->processes().name())
                               : "");
  for (const std::string& note : session.the_plan().notes) log_info("train", "note     {}", note);
  log_info("train", "plan     {}, by {}{}\n{}", options.run.pipeline.schedule,
           session.profile().device,
           session.profile().is_estimate        ? " (estimated: the first step is measured)"
           : session.profile().cached_nodes > 0 ? " (profile cached)"
                                                : "",
           plan_table(session));
}

void tell_speed(const Session& session, const TrainingSummary& summary) {
  const double predicted = session.predicted_step_seconds();
  if (summary.steps > 1 && summary.steady_step_seconds > 0) {
    log_info("train",
             "done     {} steps in {:.1f} s · steady {} a step (predicted {}) · bubble {:.1f} % "
             "(predicted {:.1f} %){}",
             summary.steps, summary.seconds, seconds_text(summary.steady_step_seconds),
             seconds_text(predicted), summary.steady_bubble * 100,
             session.prediction().bubble * 100,
             summary.steady_utilisation > 0
                 ? fmt::format(" · MFU {:.1f} %", summary.steady_utilisation * 100)
                 : "");
  } else {
    log_info("train", "done     {} step{} in {:.1f} s", summary.steps,
             summary.steps == 1 ? "" : "s", summary.seconds);
  }
}

/// Steps that were left out, checkpoints, and what the time went into.
void tell_shares(const TrainingSummary& summary, const TimeAccount& account,
                 const StepRecorder& recorder) {
  if (summary.skipped_steps > 0)
    log_info("train", "skipped  {} of {} steps were left out: their gradients were not finite",
             summary.skipped_steps, summary.steps);
  if (summary.checkpoints > 0 && summary.seconds > 0) {
    log_info("train",
             "saves    {} checkpoint{} · {:.2f} % of the time waiting for them, {} written beside "
             "training",
             summary.checkpoints, summary.checkpoints == 1 ? "" : "s",
             100 * summary.save_seconds / summary.seconds, seconds_text(summary.write_seconds));
  }
  if (const std::string text = account.text(); !text.empty())
    log_info("train", "shares   {}", text);
  if (const std::string text = recorder.explanation(); !text.empty())
    log_info("train", "time     {}", text);
}

}  // namespace

void introduce(const Options& options, const Session& session) {
  introduce_model(options, session);
  introduce_batch(options, session);
  introduce_plan(options, session);
}

void introduce_resume(const Options& options, const Session& session,
                      const FoundCheckpoint& found) {
  const Checkpoint& checkpoint = found.checkpoint;
  log_info("train", "resume   {} · step {} of {} · epoch {:.2f}", printable(found.path.string()),
           checkpoint.step, session.total_steps(), checkpoint.epoch());
  for (const std::string& change : compare_run(session, checkpoint, recorded_numbers(options)))
    log_info("train", "note     {}", change);
  if (checkpoint.in_flight() && !continues_in_flight(session, checkpoint)) {
    log_info("train",
             "note     other stages or another schedule: mini-batches that were in flight start "
             "again with the newest weights, so the numbers are not those of a run without a stop");
  }
}

void tell_memory(const Session& session) {
  std::string memory, predicted;
  for (int s = 0; s < session.stages(); ++s) {
    const char* comma = s ? ", " : "";
    memory += comma + bytes_text(session.runtime().memory(s).total());
    predicted += comma + bytes_text(session.predicted_memory(s).total());
  }
  log_info("train", "memory   {} for the stages (predicted {}), taken before the first step",
           memory, predicted);
}

std::string resume_words(const fs::path& folder) {
  return fmt::format("pipetrain --resume={}", printable(folder.string()));
}

void tell_saved(const Options& options, const std::string& output, const fs::path& folder) {
  log_info("train", "saved    {}  (run: {})", options.output == "-" ? "standard output" : output,
           folder.string());
}

void tell_end(const Options& options, const Session& session, const TrainingSummary& summary,
              const TimeAccount& account, const StepRecorder& recorder, const std::string& output,
              const fs::path& folder) {
  tell_speed(session, summary);
  tell_shares(summary, account, recorder);
  if (summary.end == RunEnd::kStalled) {
    log_info("train",
             "early    no better {} in {} evaluations; the best, {:.6g} after step {}, is "
             "in {}",
             summary.best->metric, summary.best->stalled, summary.best->value, summary.best->step,
             (folder / "checkpoints" / "best").string());
  }
  if (summary.last_evaluation && summary.last_evaluation->accuracy) {
    log_info("train", "         accuracy {:.2f} % on {} held-out samples",
             *summary.last_evaluation->accuracy * 100, summary.last_evaluation->samples);
  }
  tell_saved(options, output, folder);
  if (summary.end == RunEnd::kTime)
    log_info("train", "time     --max-time is over after step {} of {} · resume: {}", summary.steps,
             session.total_steps(), resume_words(folder));
  if (session.data().synthetic)
    log_info("train",
             "next     pipetrain --model {} --data PATH   (these weights are from synthetic data)",
             printable(options.run.model.path));
}

}  // namespace pipetrain
