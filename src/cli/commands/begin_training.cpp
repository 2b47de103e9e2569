#include "cli/commands/begin_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands/launch_record.h"
#include "cli/commands/run_folder.h"
#include "cli/commands/run_observers.h"
#include "cli/commands/run_together.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/step_recorder.h"
#include "onnx_io/delete_model.h"
#include "pipeline/runtime/last_instructions.h"
#include "processes/process_group.h"
#include "train/evaluation.h"
#include "train/export.h"
#include "train/fresh_weights.h"
#include "train/replica_run.h"
#include "train/resume.h"
#include "train/run_rate.h"
#include "train/saving.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// The models beside the output of a run that is replaced; a folder without config.toml is none.
void delete_models(const fs::path& folder, const Options& options, const Start& start) {
  std::error_code ignored;
  if (!fs::exists(folder / "config.toml", ignored)) return;
  for (const char* name : {"best.onnx", "last.onnx"}) {
    const fs::path model = folder / name;
    const bool is_used = fs::equivalent(model, options.run.model.path, ignored) ||
                         fs::equivalent(model, start.model, ignored) ||
                         fs::equivalent(model, options.output, ignored);
    if (!is_used) delete_model(model);
  }
}

}  // namespace

double most_seconds(const Options& options) {
  if (options.max_time.empty()) return 0;
  const double limit = parse_duration("--max-time", options.max_time);
  if (options.run.optimization.rate_by_time) return limit;
  constexpr double kLeast = 1e-9;  // one step
  return std::max(kLeast, limit - seconds_before_start());
}

double seconds_left(const Options& options, const FoundCheckpoint* found) {
  const double limit = most_seconds(options);
  if (limit == 0 || !options.run.optimization.rate_by_time) return limit;
  const bool goes_on = found && !options.resume_weights_only;
  constexpr double kLeast = 1e-9;
  return std::max(
      kLeast, limit - std::max(seconds_before_start(), goes_on ? found->checkpoint.seconds : 0.0));
}

void check_new_head(const Options& options, const PlannedNetwork& network, const Start& start) {
  const Loss& loss = network.graph().loss;
  const std::int64_t classes = loss.classes;
  if (options.num_classes == 0 || classes < 0 || options.num_classes == classes)
    return;  // -1: no classes
  PT_CHECK(!start.goes_on, kUsage,
           "--num-classes is {}, but the run that is resumed has {} classes; a new last layer "
           "needs a new run: give --resume-weights-only with --model and --data, or leave out "
           "--num-classes",
           options.num_classes, classes);
  PT_FAIL(kUsage,
          "--num-classes is {}, but output \"{}\", which the loss reads, has {} classes: name the "
          "output whose last layer is to be replaced and trained with --logits",
          options.num_classes, printable(loss.output), classes);
}

bool has_checkpoint(const fs::path& folder, const Start& start) {
  std::error_code ignored;
  return start.found &&
         fs::equivalent(start.found->path.parent_path(), folder / "checkpoints", ignored);
}

bool goes_on_in(const fs::path& folder, const Start& start) {
  std::error_code ignored;  // of a state in memory there may be no checkpoint yet
  return start.goes_on && (has_checkpoint(folder, start) ||
                           fs::equivalent(run_of(start.found->path), folder, ignored));
}

void check_overwrite(const Options& options, const Start& start) {
  if (!options.overwrite || start.goes_on || options.run_dir.empty()) return;
  PT_CHECK(!has_checkpoint(options.run_dir, start), kUsage,
           "--overwrite would delete the checkpoint {}, from which this run starts; give another "
           "--run-dir",
           printable(start.found->path.string()));
  const fs::path checkpoints = fs::path(options.run_dir) / "checkpoints";
  std::error_code ignored;
  PT_CHECK(!fs::is_symlink(checkpoints, ignored) || list_checkpoints(checkpoints).empty(), kUsage,
           "--overwrite deletes no checkpoints through a symbolic link, and \"{}\" is one; delete "
           "them yourself, or give another --run-dir",
           printable(checkpoints.string()));
}

void check_going_back(const Options& options, const Start& start) {
  if (start.goes_on && start.is_saved && has_checkpoint(options.run_dir, start))
    check_may_go_back(start.found->path);
}

void check_training(const Options& options, const PlannedNetwork& network, const Start& start) {
  check_metric(network);
  evaluation_units(network);
  check_validation_labels(network);
  if (start.found && !start.goes_on) check_some_weights(network, start.found->checkpoint);
  [[maybe_unused]] const RunRate checked(network, most_seconds(options), /*seconds_before=*/0);
  if (!options.trace.empty() && !options.trace_steps.empty())
    traced_steps(network, options.trace_steps);
}

void leave_earlier_run(const fs::path& folder, const Options& options, const Start& start) {
  if (!std::getenv(kLaunchedVariable)) leave_earlier_launch(folder);
  if (goes_on_in(folder, start)) {
    if (start.is_saved && has_checkpoint(folder, start)) give_up_steps_after(start.found->path);
  } else if (options.overwrite) {
    delete_checkpoints(folder / "checkpoints");
    delete_models(folder, options, start);
  }
}

std::int64_t first_step(const Options& options, const PlannedNetwork& network,
                        const FoundCheckpoint* found) {
  const bool goes_on = found && !options.resume_weights_only;
  return goes_on ? first_round(network, found->checkpoint) : 0;
}

void take_best_model(FoundCheckpoint& found, const fs::path& folder) {
  Checkpoint& checkpoint = found.checkpoint;
  const fs::path checkpoints = found.path.parent_path();
  std::error_code ignored;
  const bool same = !folder.empty() && fs::equivalent(checkpoints, folder / "checkpoints", ignored);
  if (same || !checkpoint.best || !checkpoint.best_weights.empty()) return;
  const std::int64_t best = checkpoint.best->step;
  try {
    checkpoint.best_weights = exported_weights(
        best == checkpoint.step ? checkpoint
                                : read_checkpoint(checkpoint_beside(found.path, best)));
  } catch (const Error& error) {
    log_debug("train", "{}", error.what());  // the end says so, if no model is better
  }
}

void initialize(const Options& options, PipelineRun& run) {
  if (options.init != "random") return;
  for (const auto& [name, value] :
       fresh_weights(run.network().model(), options.run.optimization.seed))
    run.runtime().write(name, value);
}

void begin_with(const Options& options, PipelineRun& run, const FoundCheckpoint* found,
                TrainingOptions& training, std::optional<ProgramCut>& cut) {
  const bool goes_on = found && !options.resume_weights_only;
  // For a rate that goes by steps, most_seconds() leaves them out.
  if (options.run.optimization.rate_by_time) training.seconds_before = seconds_before_start();
  if (goes_on) {
    cut = restore(run, found->checkpoint);
    training.resumed = &found->checkpoint;
    training.cut = cut ? &*cut : nullptr;
  } else {
    initialize(options, run);
    if (found) restore_weights(run, found->checkpoint);
  }
}

void begin_commits(const PipelineRun& run, const Start& start, TrainingOptions& training,
                   std::optional<Commits>& commits) {
  const std::optional<CommitSettings> settings = CommitSettings::of_environment();
  if (!settings) return;
  const std::int64_t step = training.resumed ? training.resumed->step : 0;
  const PlannedNetwork& network = run.network();
  const bool waits = network.replica_updates().waits();
  commits.emplace(network.all_processes(), *settings, step, start.commit,
                  waits ? CommitBy::kAll : CommitBy::kProcess0);
  Checkpoint part = make_checkpoint(run, {}, step, step, 0, run.runtime().own_contents());
  if (training.resumed) part.replicas = training.resumed->replicas;
  commits->reserve(part);
  training.commits = &*commits;
}

int follow(const Options& options, PlannedNetwork& network, const Start& start, Signals& signals) {
  const std::string logs = network.all_processes()->broadcast({});
  if (logs.empty()) return 0;  // there is nothing to do
  const int rank = network.all_processes()->rank();
  keep_output_in(fs::path(logs) / fmt::format("process-{}.log", rank));
  dump_last_instructions_to(fs::path(logs).parent_path() /
                            fmt::format("instructions-{}.txt", rank));
  TrainingOptions training;
  std::optional<ProgramCut> cut;
  training.save.patience_seconds = options.run.pipeline.timeout_seconds;
  if (options.run.optimization.rate_by_time) training.max_seconds = most_seconds(options);
  PipelineRun run(network, first_step(options, network, start.checkpoint()), FileWeights::kRelease);
  begin_with(options, run, start.checkpoint(), training, cut);
  std::optional<Commits> commits;
  begin_commits(run, start, training, commits);
  Follower follower(signals);
  signals.watch_stops();
  const RunEnd end = network.replica_updates().waits()
                         ? train(run, follower, training).end
                         : serve_replicas(run, follower, training.commits);
  if (end == RunEnd::kStopped) return 128 + (signals.stop() ? signals.stop() : SIGTERM);
  run.collect_weights();
  return 0;
}

}  // namespace pipetrain
