#include "cli/commands/run_messages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/log.h"
#include "base/setting.h"
#include "base/units.h"
#include "cli/commands/replica_mode.h"
#include "cli/options/option_values.h"
#include "cli/output/terminal.h"
#include "passes/parameters.h"
#include "processes/process_group.h"
#include "train/resume.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Whether --verbose was given.
bool with_details() { return is_logged(LogLevel::kDebug); }

/// Labels whose size keeps a regression from learning.
std::string note_on_scale_of_labels(const PlannedNetwork& network) {
  const Loss& loss = network.graph().loss;
  if (loss.kind != LossKind::kSquaredError && loss.kind != LossKind::kAbsoluteError) return {};
  constexpr std::size_t kLookedAt = 10000;
  constexpr double kLarge = 100;
  const Dataset& data = *network.data().train;
  std::vector<std::size_t> indices(std::min(data.size(), kLookedAt));
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  const std::size_t column = data.columns().size() - 1;
  HostTensor labels(data.columns()[column].batch_type(indices.size()));
  data.gather(indices, column, labels.view());
  double sum = 0, squares = 0;
  const std::vector<double> values = labels.to_doubles();
  for (const double value : values) sum += value, squares += value * value;
  const double mean = sum / static_cast<double>(values.size());
  const double deviation =
      std::sqrt(std::max(0.0, squares / static_cast<double>(values.size()) - mean * mean));
  if (std::abs(mean) < kLarge && deviation < kLarge) return {};
  return fmt::format(
      "the labels have mean {:.3g} and standard deviation {:.3g}: a network learns numbers of this "
      "size slowly; scale them in the data, to about 1",
      mean, deviation);
}

/// Layers that lead only to outputs without a loss stay as they are.
std::string note_on_other_outputs(const TrainingGraph& graph) {
  std::vector<std::string> tensors, outputs;
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.gradient) tensors.push_back(printable(parameter.name));
  }
  for (const std::string& name : graph.output_names) {
    if (name != graph.loss.output) outputs.push_back(fmt::format("\"{}\"", printable(name)));
  }
  if (tensors.empty() || outputs.empty()) return {};
  return fmt::format(
      "only output \"{}\" has a loss, not {}: {} of {} tensors are not trained; --logits NAME "
      "chooses another output, and a model that computes an output \"loss\" trains several",
      printable(graph.loss.output), fmt::join(outputs, ", "), tensors.size(),
      graph.parameters.size());
}

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
  for (const std::string& note : network.model().notes()) log_info("train", "note     {}", note);
  if (const std::string note = note_on_other_outputs(graph); !note.empty())
    log_info("train", "note     {}", note);
  if (network.data().synthetic) {
    log_info("train",
             "note     no --data PATH: synthetic samples, to measure the speed; the trained "
             "weights are not useful");
  }
  if (with_details()) {
    log_info("train", "{}", network.data().description);
  } else {
    log_info("train", "{}", network.data().headline);
    for (const std::string& warning : network.data().warnings)
      log_info("train", "note     {}", warning);
  }
  log_info("train", "loss     {} on output \"{}\"", graph.loss.task, printable(graph.loss.output));
  if (const std::string note = note_on_scale_of_labels(network); !note.empty())
    log_info("train", "note     {}", note);
  const auto named = static_cast<std::int64_t>(network.data().class_names.size());
  if (named > 1 && named < graph.loss.classes && options.num_classes == 0) {
    log_info("train",
             "note     the data have {} classes, the model {}: --num-classes {} would replace its "
             "last layer",
             named, graph.loss.classes, named);
  }
}

void log_batch(const Options& options, const PlannedNetwork& network) {
  const int gradients = network.replica_updates().gradients();
  log_info("train", "batch    {} = {}{} micro-batch{} x {} sample{}",
           options.run.optimization.batch_size,
           gradients > 1 ? fmt::format("{} replicas x ", gradients) : "", network.micro_batches(),
           network.micro_batches() == 1 ? "" : "es", network.micro_batch(),
           network.micro_batch() == 1 ? "" : "s");
  const auto parts = std::max<std::int64_t>(gradients, network.micro_batches());
  if (const std::string& node = network.graph().coupled_samples; !node.empty() && parts > 1) {
    log_info("train",
             "note     node {} combines samples, but only those of its micro-batch; to combine the "
             "whole batch, use {} 1 and one replica",
             printable(node), setting("micro-batches"));
  }
  if (const std::int64_t fixed = network.model().fixed_batch();
      fixed > 0 && network.micro_batches() >= 2) {
    log_info("train",
             "note     the model was exported with a fixed batch of {} sample{}; with a free batch "
             "dimension (dynamic_shapes or dynamic_axes in PyTorch) it trains faster",
             fixed, fixed == 1 ? "" : "s");
  }
}

void log_plan(const Options& options, const PlannedNetwork& network) {
  const bool one_each = network.stages() == network.devices();
  const std::string devices = fmt::format(
      "{} {}{} x {} thread{}{}{}", network.devices(), one_each ? "stage" : "device",
      network.devices() == 1 ? "" : "s", network.threads(), network.threads() == 1 ? "" : "s",
      one_each ? "" : fmt::format(", {} stages", network.stages()),
      network.processes() ? fmt::format(", in {} processes ({})", network.processes()->size(),
                                        network.processes()->processes().name())
                          : "");
  for (const std::string& note : network.plan().notes) log_info("train", "note     {}", note);
  if (!network.replica_updates().waits())
    return log_info("train", "plan     {} · steps are not predicted", words_on_replicas(network));
  if (!with_details() && !options.dry_run) {
    const std::string bubble =
        network.devices() > 1 ? fmt::format(" · bubble {:.1f} %", network.predicted_bubble() * 100)
                              : "";
    // The simulation has no part of the time that taking turns costs in caches and in the kernel.
    const bool turns = network.shares_cores() && options.run.pipeline.gpu_ids.empty();
    const std::string step =
        network.profile().is_estimate  // that of any computer says little of this one
            ? ""
            : fmt::format(" · predicted step {}{}", seconds_text(network.predicted_step_seconds()),
                          turns ? " or more" : "");
    return log_info("train", "plan     {} · {}{}{}{}", options.run.pipeline.schedule, devices,
                    turns ? fmt::format(" on {} core{}", network.cores().cores,
                                        network.cores().cores == 1 ? "" : "s")
                          : "",
                    step, bubble);
  }
  log_info("train", "device   {}", devices);
  log_info("train", "plan     {}, {} {}{}\n{}", options.run.pipeline.schedule,
           network.profile().is_estimate ? "estimated for" : "profiled on",
           network.profile().device,
           network.profile().is_estimate        ? " (until steps are measured)"
           : network.profile().cached_nodes > 0 ? " (profile cached)"
                                                : "",
           plan_table(network));
}

/// Whether the prediction is worth a word: if it was far off, though not an estimate.
bool shows_prediction(const PlannedNetwork& network, const StepRecorder& recorder,
                      double measured) {
  if (!network.has_predicted_steps()) return false;
  if (with_details()) return true;
  const double predicted = recorder.predicted_seconds();
  return !recorder.is_estimate() && std::abs(measured - predicted) > std::max(0.1, 0.2 * predicted);
}

void log_speed(const PlannedNetwork& network, const TrainingSummary& summary,
               const StepRecorder& recorder) {
  const double measured = summary.steady_step_seconds;
  const std::int64_t before = std::min(recorder.steps_before(), summary.steps);
  const std::int64_t steps = summary.steps - before;
  std::string text =
      fmt::format("{} step{} in {:.1f} s{}", steps, steps == 1 ? "" : "s", summary.seconds,
                  before > 0 ? fmt::format(" ({} in all)", summary.steps) : "");
  if (steps > 1 && measured > 0) {
    const bool waits = network.replica_updates().waits();
    const bool compares = shows_prediction(network, recorder, measured);
    const auto beside = [&](const std::string& value) {
      return compares ? fmt::format(" (predicted {})", value) : std::string();
    };
    text += fmt::format(" · {}/step{}", seconds_text(measured),
                        beside(seconds_text(recorder.predicted_seconds())));
    if (waits && (network.devices() > 1 || with_details())) {
      text += fmt::format(" · bubble {:.1f} %{}", summary.steady_bubble * 100,
                          beside(fmt::format("{:.1f} %", network.predicted_bubble() * 100)));
    }
    if (summary.steady_utilisation > 0)
      text += fmt::format(" · MFU {:.1f} %", summary.steady_utilisation * 100);
  }
  if (summary.end == RunEnd::kStalled) {
    text += " · early stopping: ";
    text += summary.best ? fmt::format("no improvement of {} for {} validations",
                                       summary.best->metric, summary.best->stalled)
                         : fmt::format("no finite {} in {} validations", summary.unmeasured.metric,
                                       summary.unmeasured.validations);
  }
  log_info("train", "done     {}", text);
}

/// Skipped steps, checkpoints, and where the time went.
void log_time_shares(const PlannedNetwork& network, const TrainingSummary& summary,
                     const TimeAccount& account, const StepRecorder& recorder) {
  if (summary.skipped_steps > 0)
    log_info("train", "skipped  {} of {} steps, whose gradients were not finite",
             summary.skipped_steps, summary.steps);
  const bool shows = shows_prediction(network, recorder, summary.steady_step_seconds);
  if (const std::string text = recorder.explanation(); !text.empty() && shows)
    log_info("train", "time     {}", text);
  if (!with_details()) return;
  if (summary.checkpoints > 0 && summary.seconds > 0) {
    log_info("train",
             "saves    {} checkpoint{} · blocked training {:.2f} % of the time · {} of background "
             "writes",
             summary.checkpoints, summary.checkpoints == 1 ? "" : "s",
             100 * summary.save_seconds / summary.seconds, seconds_text(summary.write_seconds));
  }
  if (const std::string text = account.text(); !text.empty())
    log_info("train", "shares   {}", text);
}

}  // namespace

void log_start(const Options& options, const PlannedNetwork& network) {
  for (const std::string& text : unused_settings(options)) log_warning("train", "{}", text);
  log_model(options, network);
  log_batch(options, network);
  log_left_out("train", options.run.optimization.drop_last, network);
  log_plan(options, network);
}

void log_left_out(const char* command, bool drops_last, const PlannedNetwork& network) {
  const std::int64_t fixed = network.model().fixed_batch();
  if (fixed == 0) return;
  const std::string since =
      fmt::format("since the model was exported with a fixed batch of {} sample{}", fixed,
                  fixed == 1 ? "" : "s");
  const std::int64_t samples = network.epoch_samples();
  const std::int64_t batch = network.config().optimization.batch_size;
  if (network.mode() == RunMode::kTrain && !drops_last && samples % batch != 0) {
    log_info(command,
             "note     each epoch leaves out {} of {} samples, which fill no batch of {}, {}",
             samples % batch, samples, batch, since);
  }
  const bool evaluates =
      network.mode() != RunMode::kTrain || network.config().optimization.evaluate_every > 0;
  const Dataset* evaluated = evaluates ? network.evaluation_data() : nullptr;
  const std::int64_t all = evaluated ? static_cast<std::int64_t>(evaluated->size()) : 0;
  if (all % fixed != 0)
    log_info(command, "note     evaluations leave out {} of {} samples, {}", all % fixed, all,
             since);
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
             "note     stages, schedule, memory units, batch size or the number of steps changed: "
             "mini-batches in flight restart with the newest weights, so the results differ from "
             "those of an uninterrupted run");
  }
}

void log_remainders(const PipelineRun& run) {
  for (const std::string& note : run.notes_on_remainders()) log_info("train", "note     {}", note);
}

void log_memory(const PipelineRun& run) {
  if (!with_details()) return;
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

void log_commits(const Commits& commits, double seconds) {
  log_info("train", "commits  {} in memory, {:.2f} % of the time", commits.count(),
           100 * commits.seconds() / std::max(seconds, 1e-9));
}

std::string resume_command(const Options& options, const fs::path& folder) {
  // A rate that goes by the time needs the time, which is not taken from checkpoints.
  const bool by_time = options.run.optimization.rate_by_time;
  return fmt::format("pipetrain --resume={}{}", printable(folder.string()),
                     by_time ? " --max-time=" + options.max_time : "");
}

void log_saved(const WrittenModels& written, const fs::path& folder) {
  const bool is_last = written.step == written.last_step;
  std::string which;
  if (written.best && written.best->step == written.last_step) {
    which = fmt::format(": the best and last model, {}", words_on(*written.best));
  } else if (written.best) {
    which = is_last ? fmt::format(": the last model, of step {}; the best, {}", written.step,
                                  words_on(*written.best))
                    : fmt::format(": the best model, {}; the last, of step {}",
                                  words_on(*written.best), written.last_step);
    which += written.other.empty() ? ", is lost" : fmt::format(", is {}", written.other);
  }
  log_info("train", "saved    {}{} · run folder: {}",
           written.output == "-" ? "standard output" : written.output, which, folder.string());
}

void log_end(const Options& options, const PlannedNetwork& network, const TrainingSummary& summary,
             const TimeAccount& account, const StepRecorder& recorder, const WrittenModels& written,
             const fs::path& folder) {
  log_speed(network, summary, recorder);
  log_time_shares(network, summary, account, recorder);
  log_saved(written, folder);
  if (summary.end != RunEnd::kTime) return;
  // A learning rate that spans the time is at its end.
  const bool by_time = options.run.optimization.rate_by_time;
  log_info("train", "time     --max-time reached after step {} of {}{}", summary.steps,
           network.total_steps(),
           by_time ? std::string() : " · resume: " + resume_command(options, folder));
}

}  // namespace pipetrain
