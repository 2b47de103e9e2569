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

void log_model(const Options& options, const PlannedNetwork& network) {
  const TrainingGraph& graph = network.graph();
  std::int64_t parameters = 0;
  for (const Parameter& parameter : graph.parameters)
    parameters += graph.graph[parameter.value].type.count();
  log_info("train",
           "pipetrain {} · {} · {} trainable parameters in {} tensors · {} nodes · opset {}",
           PIPETRAIN_VERSION, fs::path(options.run.model.path).filename().string(), parameters,
           graph.parameters.size(), network.chain().order.size(), network.model().file.opset);
  for (const std::string& warning : network.model().file.warnings)
    log_warning("onnx", "{}", warning);
  for (const std::string& note : graph.notes) log_info("train", "note     {}", note);
  if (const std::string note = note_on_uncertain_parameters(network.model().rules); !note.empty())
    log_info("train", "note     {}", note);
  if (network.data().synthetic) {
    log_info("train",
             "note     no --data: synthetic samples, to measure the speed; the trained weights are "
             "not useful");
  }
  log_info("train", "{}", network.data().description);
  log_info("train", "loss     {} on output \"{}\"", graph.loss.task, printable(graph.loss.output));
  const auto named = static_cast<std::int64_t>(network.data().class_names.size());
  if (named > 1 && named < graph.loss.classes && options.num_classes == 0) {
    log_info("train",
             "note     the data have {} classes, the model {}: --num-classes {} would replace its "
             "last layer",
             named, graph.loss.classes, named);
  }
}

void log_batch(const Options& options, const PlannedNetwork& network) {
  log_info("train", "batch    {} = {} micro-batch{} x {} sample{}",
           options.run.optimization.batch_size, network.micro_batches(),
           network.micro_batches() == 1 ? "" : "es", network.micro_batch(),
           network.micro_batch() == 1 ? "" : "s");
  for (const OnnxValue& input : network.model().model.inputs) {
    if (input.dims.empty() || input.dims[0].value <= 0 || network.micro_batches() < 2) continue;
    log_info("train",
             "note     the model was exported with a fixed batch of {} sample{}; with a free batch "
             "dimension (dynamic_shapes or dynamic_axes in PyTorch) it trains faster",
             input.dims[0].value, input.dims[0].value == 1 ? "" : "s");
    break;
  }
}

void log_plan(const Options& options, const PlannedNetwork& network) {
  const bool one_each = network.stages() == network.devices();
  log_info("train", "device   {} {}{} x {} thread{}{}{}", network.devices(),
           one_each ? "stage" : "device", network.devices() == 1 ? "" : "s", network.threads(),
           network.threads() == 1 ? "" : "s",
           one_each ? "" : fmt::format(", {} stages", network.stages()),
           network.processes() ? fmt::format(", in {} processes ({})", network.processes()->size(),
                                             network.processes()->processes().name())
                               : "");
  for (const std::string& note : network.plan().notes) log_info("train", "note     {}", note);
  log_info("train", "plan     {}, {} {}{}\n{}", options.run.pipeline.schedule,
           network.profile().is_estimate ? "estimated for" : "profiled on",
           network.profile().device,
           network.profile().is_estimate        ? " (until the first step is measured)"
           : network.profile().cached_nodes > 0 ? " (profile cached)"
                                                : "",
           plan_table(network));
}

void log_speed(const PlannedNetwork& network, const TrainingSummary& summary) {
  const double predicted = network.predicted_step_seconds();
  if (summary.steps > 1 && summary.steady_step_seconds > 0) {
    log_info("train",
             "done     {} steps in {:.1f} s · {}/step (predicted {}) · bubble {:.1f} % "
             "(predicted {:.1f} %){}",
             summary.steps, summary.seconds, seconds_text(summary.steady_step_seconds),
             seconds_text(predicted), summary.steady_bubble * 100,
             network.prediction().bubble * 100,
             summary.steady_utilisation > 0
                 ? fmt::format(" · MFU {:.1f} %", summary.steady_utilisation * 100)
                 : "");
  } else {
    log_info("train", "done     {} step{} in {:.1f} s", summary.steps,
             summary.steps == 1 ? "" : "s", summary.seconds);
  }
}

/// Skipped steps, checkpoints, and where the time went.
void log_time_shares(const TrainingSummary& summary, const TimeAccount& account,
                     const StepRecorder& recorder) {
  if (summary.skipped_steps > 0)
    log_info("train", "skipped  {} of {} steps, whose gradients were not finite",
             summary.skipped_steps, summary.steps);
  if (summary.checkpoints > 0 && summary.seconds > 0) {
    log_info("train",
             "saves    {} checkpoint{} · blocked training {:.2f} % of the time · {} of background "
             "writes",
             summary.checkpoints, summary.checkpoints == 1 ? "" : "s",
             100 * summary.save_seconds / summary.seconds, seconds_text(summary.write_seconds));
  }
  if (const std::string text = account.text(); !text.empty())
    log_info("train", "shares   {}", text);
  if (const std::string text = recorder.explanation(); !text.empty())
    log_info("train", "time     {}", text);
}

}  // namespace

void log_start(const Options& options, const PlannedNetwork& network) {
  log_model(options, network);
  log_batch(options, network);
  log_plan(options, network);
}

void log_resume(const Options& options, const PlannedNetwork& network,
                const FoundCheckpoint& found) {
  const Checkpoint& checkpoint = found.checkpoint;
  log_info("train", "resume   {} · step {} of {} · epoch {:.2f}", printable(found.path.string()),
           checkpoint.step, network.total_steps(), checkpoint.epoch());
  for (const std::string& change : compare_run(network, checkpoint, recorded_settings(options)))
    log_info("train", "note     {}", change);
  if (checkpoint.in_flight() && !continues_in_flight(network, checkpoint)) {
    log_info("train",
             "note     stages or schedule changed: mini-batches in flight restart with the newest "
             "weights, so the results differ from those of an uninterrupted run");
  }
}

void log_memory(const PipelineRun& run) {
  const PlannedNetwork& network = run.network();
  std::string memory, predicted;
  for (int s = 0; s < network.stages(); ++s) {
    const char* comma = s ? ", " : "";
    memory += comma + bytes_text(run.runtime().memory(s).total());
    predicted += comma + bytes_text(network.predicted_memory(s).total());
  }
  log_info("train", "memory   {} for the stages (predicted {}), allocated up front", memory,
           predicted);
}

std::string resume_command(const fs::path& folder) {
  return fmt::format("pipetrain --resume={}", printable(folder.string()));
}

void log_saved(const WrittenModels& written, const fs::path& folder) {
  const bool is_last = written.step == written.last_step;
  std::string which;
  if (written.best && written.best->step == written.last_step) {
    which = fmt::format(": the best and last, {}", words_on(*written.best));
  } else if (written.best) {
    which = is_last ? fmt::format(": the last, of step {}; the best, {}", written.step,
                                  words_on(*written.best))
                    : fmt::format(": the best, {}; the last, of step {}", words_on(*written.best),
                                  written.last_step);
    which += written.other.empty() ? ", is lost" : fmt::format(", is {}", written.other);
  }
  log_info("train", "saved    {}{}  (run: {})",
           written.output == "-" ? "standard output" : written.output, which, folder.string());
}

void log_end(const Options& options, const PlannedNetwork& network, const TrainingSummary& summary,
             const TimeAccount& account, const StepRecorder& recorder,
             const WrittenModels& written, const fs::path& folder) {
  log_speed(network, summary);
  log_time_shares(summary, account, recorder);
  if (summary.end == RunEnd::kStalled) {
    log_info("train",
             "early stopping: no improvement of {} for {} validations; best: {:.6g} at step {}",
             summary.best->metric, summary.best->stalled, summary.best->value, summary.best->step);
  }
  if (summary.last_evaluation && summary.last_evaluation->accuracy) {
    log_info("train", "         accuracy {:.2f} % on {} validation samples",
             *summary.last_evaluation->accuracy * 100, summary.last_evaluation->samples);
  }
  log_saved(written, folder);
  if (summary.end == RunEnd::kTime)
    log_info("train", "time     --max-time reached after step {} of {} · resume: {}", summary.steps,
             network.total_steps(), resume_command(folder));
  if (network.data().synthetic)
    log_info("train",
             "next     pipetrain --model {} --data PATH   (these weights were trained on synthetic "
             "data)",
             printable(options.run.model.path));
}

}  // namespace pipetrain
