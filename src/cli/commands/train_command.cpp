// pipetrain train: plan, train, export; the run folder keeps what was decided and what happened.
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stale_files.h"
#include "base/units.h"
#include "base/vectors.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_together.h"
#include "cli/options/config_file.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/events.h"
#include "cli/output/status_file.h"
#include "cli/output/step_recorder.h"
#include "cli/output/tensorboard.h"
#include "cli/output/terminal.h"
#include "cli/output/time_shares.h"
#include "partition/plan_file.h"
#include "pipeline/view/render.h"
#include "processes/process_group.h"
#include "profile/link_measure.h"
#include "profile/machine.h"
#include "train/export.h"
#include "train/fresh_weights.h"
#include "train/resume.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Makes the newest run of a folder of runs the one that is called "latest".
void call_latest(const fs::path& folder) {
  std::error_code ignored;
  const fs::path latest = folder.parent_path() / "latest";
  if (!fs::is_symlink(latest, ignored) && fs::exists(latest, ignored)) return;
  fs::remove(latest, ignored);
  fs::create_directory_symlink(folder.filename(), latest, ignored);
}

/// Makes the folder of the run. A name that nobody gave is always new. `resumed`: the folder that a
/// checkpoint belongs to; empty: none.
fs::path make_run_folder(const Options& options, const fs::path& resumed) {
  std::error_code error;
  if (!resumed.empty()) return resumed;
  if (!options.run_dir.empty()) {
    const fs::path folder = options.run_dir;
    PT_CHECK(!fs::exists(folder) || fs::is_directory(folder), kUsage,
             "--run-dir: \"{}\" is not a folder", printable(options.run_dir));
    // A run that was to be resumed where possible may have left all but a checkpoint.
    PT_CHECK(options.overwrite || options.resume == "auto" || !fs::exists(folder) ||
                 fs::is_empty(folder, error),
             kUsage, "--run-dir: \"{}\" is not empty; give --resume, --overwrite or another folder",
             printable(options.run_dir));
    fs::create_directories(folder, error);
    PT_CHECK(!error, kResource, "--run-dir: cannot make \"{}\": {}", printable(options.run_dir),
             error.message());
    return folder;
  }
  const fs::path runs = folder_of_runs();
  const std::time_t time = std::time(nullptr);
  std::tm local{};
  localtime_r(&time, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string base = fs::path(options.run.model.path).stem().string() + "-" + stamp;
  fs::create_directories(runs, error);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const fs::path folder = runs / (attempt ? fmt::format("{}-{}", base, attempt + 1) : base);
    if (fs::create_directory(folder, error)) return folder;
    if (error) break;
  }
  PT_FAIL(kResource,
          "cannot make a folder for the run below \"{}\": {}; choose another place with --run-dir",
          runs.string(), error.message());
}

/// A run's folder that goes again unless the run begins.
class UnusedFolder {
 public:
  /// `is_named`: its name, below the folder of all runs, was chosen here.
  UnusedFolder(fs::path folder, bool is_named) : folder_(std::move(folder)), is_named_(is_named) {}
  UnusedFolder(const UnusedFolder&) = delete;
  UnusedFolder& operator=(const UnusedFolder&) = delete;
  ~UnusedFolder() {
    if (folder_.empty()) return;
    std::error_code ignored;
    for (const char* name : {"model.onnx", "model.onnx.data"}) fs::remove(folder_ / name, ignored);
    fs::remove(folder_, ignored);  // if that was all
    if (is_named_) fs::remove(folder_.parent_path(), ignored);
  }
  const fs::path& path() const { return folder_; }
  fs::path keep() { return std::exchange(folder_, {}); }

 private:
  fs::path folder_;
  bool is_named_;
};

class Watcher final : public TrainingObserver {
 public:
  Watcher(PipelineRun& run, TimeAccount& account, Progress& progress, EventLog& events,
          TensorBoard& board, StepRecorder& recorder, StatusFile& status, Signals& signals)
      : run_(run),
        account_(account),
        progress_(progress),
        events_(events),
        board_(board),
        recorder_(recorder),
        status_(status),
        signals_(signals) {}
  void on_round(std::int64_t step, const Program& program, const RoundResult& result) override {
    if (!run_.network().processes()) account_.round(run_, program, result);
    recorder_.round(step, program, result);
    if (!run_.network().asynchronous()) return;
    std::vector<double> busy;
    for (const double seconds : result.busy_seconds) busy.push_back(seconds / result.seconds);
    progress_.utilisation(busy);
  }
  void on_step(const StepReport& report) override {
    events_.step(report);
    board_.step(report);
    progress_.step(report);
    status_.step(report);
    if (signals_.take_status()) {
      progress_.status(report);
      events_.signal("USR2", "status");
    }
  }
  void on_evaluation(const EvaluationReport& report) override {
    events_.evaluation(report);
    board_.evaluation(report);
    progress_.evaluation(report);
  }
  void on_checkpoint(const SaveOutcome& outcome) override {
    events_.checkpoint(outcome);
    if (!outcome.written) {
      progress_.clear();
      log_warning("checkpoint", "no checkpoint: {}", outcome.failure);
      return;
    }
    status_.checkpoint(*outcome.written);
    log_debug("checkpoint", "saved {} ({}, {}, {})", outcome.written->path.string(),
              outcome.written->reason, bytes_text(outcome.written->bytes),
              seconds_text(outcome.written->seconds));
  }
  RunRequests requests() override { return {signals_.stop() != 0, signals_.take_save()}; }

 private:
  PipelineRun& run_;
  TimeAccount& account_;
  Progress& progress_;
  EventLog& events_;
  TensorBoard& board_;
  StepRecorder& recorder_;
  StatusFile& status_;
  Signals& signals_;
};

void introduce(const Options& options, const PlannedNetwork& network) {
  const TrainingGraph& graph = network.graph();
  std::int64_t parameters = 0;
  for (const Parameter& parameter : graph.parameters)
    parameters += graph.graph[parameter.value].type.count();
  log_info("train", "pipetrain {} · {} · {} trained numbers in {} tensors · {} nodes · opset {}",
           PIPETRAIN_VERSION, fs::path(options.run.model.path).filename().string(), parameters,
           graph.parameters.size(), network.chain().order.size(), network.model().file.opset);
  for (const std::string& warning : network.model().file.warnings)
    log_warning("onnx", "{}", warning);
  for (const std::string& note : graph.notes) log_info("train", "note     {}", note);
  if (network.data().synthetic) {
    log_info(
        "train",
        "note     no --data: synthetic samples measure the speed; the weights will not be useful");
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
  log_info("train", "batch    {} = {} micro-batch{} x {} sample{}",
           options.run.optimization.batch_size, network.micro_batches(),
           network.micro_batches() == 1 ? "" : "es", network.micro_batch(),
           network.micro_batch() == 1 ? "" : "s");
  for (const OnnxValue& input : network.model().model.inputs) {
    if (input.dims.empty() || input.dims[0].value <= 0 || network.micro_batches() < 2) continue;
    log_info(
        "train",
        "note     the model takes {} sample{} at a time, as it was exported; with a free first "
        "dimension (dynamic_shapes or dynamic_axes in PyTorch) it trains faster",
        input.dims[0].value, input.dims[0].value == 1 ? "" : "s");
    break;
  }
  const bool one_each = network.stages() == network.devices();
  log_info("train", "device   {} {}{} x {} thread{}{}{}", network.devices(),
           one_each ? "stage" : "device", network.devices() == 1 ? "" : "s", network.threads(),
           network.threads() == 1 ? "" : "s",
           one_each ? "" : fmt::format(", {} stages", network.stages()),
           network.processes() ? fmt::format(", in {} processes ({})", network.processes()->size(),
                                             network.processes()->processes().name())
                               : "");
  for (const std::string& note : network.plan().notes) log_info("train", "note     {}", note);
  log_info("train", "plan     {}, by {}{}\n{}", options.run.pipeline.schedule,
           network.profile().device,
           network.profile().is_estimate        ? " (estimated: the first step is measured)"
           : network.profile().cached_nodes > 0 ? " (profile cached)"
                                                : "",
           plan_table(network));
}

/// What all devices could compute in a second; 0: unknown.
double peak_flops(const PlannedNetwork& network) {
  if (!network.config().pipeline.gpu_ids.empty() || network.processes()) return 0;
  const int threads = std::min(available_cores(), network.devices() * network.threads());
  return matrix_product_rate(threads, network.config().pipeline.profile_cache);
}

/// The checkpoint of a run's last step, which is written if the run has not done so.
fs::path last_checkpoint(const PipelineRun& run, const SaveSettings& save,
                         const TrainingSummary& summary) {
  if (summary.last_checkpoint.filename() == checkpoint_name(summary.steps))
    return summary.last_checkpoint;
  Checkpoint checkpoint =
      make_checkpoint(run, save.run, summary.steps, summary.steps, 0, run.trained_contents());
  checkpoint.reason = "error";
  checkpoint.learning_rate = summary.learning_rate;
  checkpoint.seconds = summary.seconds;
  checkpoint.best = summary.best;
  return write_checkpoint(save.folder, checkpoint).path;
}

/// Writes the trained model to `path`, or to standard output. Where that fails, it is kept as
/// `spare`, in the folder of the run; where the model's own files have changed, as a checkpoint.
void write_output(const Options& options, PipelineRun& run, const std::string& path,
                  const std::string& spare, const SaveSettings& save,
                  const TrainingSummary& summary) try {
  std::vector<std::string> changes;
  std::error_code ignored;
  const bool spare_is_input = fs::equivalent(options.run.model.path, spare, ignored);
  if (options.output == "-") {
    std::string temporary = spare + ".out";
    changes = run.export_model(temporary);
    std::cout << std::ifstream(temporary, std::ios::binary).rdbuf();
    std::cout.flush();
    if (!std::cout.good() && !spare_is_input) fs::rename(std::exchange(temporary, spare), spare);
    PT_CHECK(std::cout.good(), kResource,
             "cannot write the model to standard output, which is full or closed; it is in {}",
             printable(temporary));
    fs::remove(temporary);
  } else {
    try {
      changes = run.export_model(path, options.overwrite);
    } catch (Error& error) {
      if (path == spare || spare_is_input || error.kind() == ErrorKind::kModel) throw;
      run.export_model(spare, /*overwrite=*/true);
      error.add_frame("writing the trained model, which is in " + printable(spare) + " instead");
      throw;
    }
  }
  for (const std::string& change : changes) log_info("train", "note     {}", change);
} catch (const Error& error) {
  if (error.kind() != ErrorKind::kModel) throw;
  const std::string kept = printable(last_checkpoint(run, save, summary).string());
  PT_FAIL(kModel,
          "{}; what was trained is in {}: restore the file, then pipetrain export --from {} "
          "--output {}",
          error.message(), kept, kept, printable(path));
}

/// Says what a run goes on from, and what it does otherwise than before.
void introduce_resume(const PlannedNetwork& network, const FoundCheckpoint& found) {
  const Checkpoint& checkpoint = found.checkpoint;
  log_info("train", "resume   {} · step {} of {} · epoch {:.2f}", printable(found.path.string()),
           checkpoint.step, network.total_steps(), checkpoint.epoch());
  for (const std::string& change : compare_run(network, checkpoint))
    log_info("train", "note     {}", change);
  if (checkpoint.in_flight() && !continues_in_flight(network, checkpoint)) {
    log_info("train",
             "note     other stages or another schedule: mini-batches that were in flight start "
             "again with the newest weights, so the numbers are not those of a run without a stop");
  }
}

SaveSettings save_settings(const Options& options, const PlannedNetwork& network,
                           const fs::path& folder) {
  SaveSettings save;
  save.folder = folder / "checkpoints";
  // Synthetic data measure the speed: nobody wants their weights back.
  const bool wanted = !options.save_every.empty();
  save.every = SaveEvery::parse(wanted                     ? options.save_every
                                : network.data().synthetic ? "never"
                                                           : "1ep");
  save.may_wait = !wanted;
  save.least_seconds = 60;
  save.keep = options.keep;
  save.only_finite = options.run.optimization.on_nonfinite != OnNonfinite::kIgnore;
  save.stop_on_error = options.on_checkpoint_error == "fail";
  save.run = describe_run(network, settings_to_keep(options, network));
  return save;
}

/// A configuration file that starts the run again.
std::string config_of_run(const Options& options, const PlannedNetwork& network) {
  Options copy = options;
  copy.settings = overlay(options.settings, {settings_to_keep(options, network).front()});
  // The model in the folder has its new head already.
  std::erase_if(copy.settings, [](const Assignment& s) { return s.first == "--num-classes"; });
  return config_text(copy, "train", /*all=*/true);
}

/// The command that goes on with a run.
std::string resume_words(const fs::path& folder) {
  return fmt::format("pipetrain --resume={}", printable(folder.string()));
}

/// Ends a run that a signal has stopped and that has been saved; returns the exit code.
int end_stopped(int signal, const TrainingSummary& summary, EventLog& events, StatusFile& status,
                const fs::path& folder) {
  const int code = 128 + signal;
  events.signal(name_of_signal(signal), "save and stop");
  events.run_end("interrupted", code, summary, "");
  status.end("interrupted", code);
  PT_CHECK(!summary.last_checkpoint.empty(), kResource,
           "stopped after step {} by {}, but the checkpoint could not be saved", summary.steps,
           name_of_signal(signal));
  log_info("train", "stopped  by {} after step {} · saved {} · resume: {}", name_of_signal(signal),
           summary.steps, summary.last_checkpoint.filename().string(), resume_words(folder));
  stop_copying_log();
  return code;
}

/// The checkpoint that process 0 has found, for all; `folder` is visible to them.
std::optional<FoundCheckpoint> same_checkpoint(const Options& options, ProcessGroup* processes) {
  std::optional<FoundCheckpoint> found;
  if (!processes || processes->leads()) found = checkpoint_to_resume(options);
  if (!processes || options.resume.empty()) return found;
  const std::string path = processes->broadcast(found ? fs::absolute(found->path).string() : "");
  // Whose it is, process 0 says: others may have another home directory.
  const bool is_own = processes->broadcast(found && found->checkpoint.is_own ? "own" : "") == "own";
  if (!processes->leads() && !path.empty()) found = find_checkpoint(path);
  if (found) found->checkpoint.is_own = is_own;
  return found;
}

/// Only asks.
class Follower final : public TrainingObserver {
 public:
  explicit Follower(Signals& signals) : signals_(signals) {}
  RunRequests requests() override { return {signals_.stop() != 0, signals_.take_save()}; }

 private:
  Signals& signals_;
};

/// The step at which the first round of a run begins.
std::int64_t first_step(const Options& options, const PlannedNetwork& network,
                        const FoundCheckpoint* found) {
  const bool goes_on = found && !options.resume_weights_only;
  return goes_on ? first_round(network, found->checkpoint) : 0;
}

/// Puts into a run what it begins with.
void begin_with(const Options& options, PipelineRun& run, const FoundCheckpoint* found,
                TrainingOptions& training, std::optional<ProgramCut>& cut) {
  const bool goes_on = found && !options.resume_weights_only;
  if (goes_on) {
    cut = restore(run, found->checkpoint);
    training.resumed = &found->checkpoint;
    training.cut = cut ? &*cut : nullptr;
  } else {
    if (options.init == "random") {
      for (const auto& [name, value] :
           fresh_weights(run.network().model(), options.run.optimization.seed))
        run.runtime().write(name, value);
    }
    if (found) restore_weights(run, found->checkpoint);
  }
  run.release_initial_weights();
}

/// What a process does that does not lead: train its stages. Files and words are process 0's.
int follow(const Options& options, PlannedNetwork& network, const FoundCheckpoint* found,
           Signals& signals) {
  if (network.processes()->broadcast({}) == "nothing to do") return 0;
  TrainingOptions training;
  std::optional<ProgramCut> cut;
  if (options.run.optimization.rate_by_time)
    training.max_seconds = parse_duration("--max-time", options.max_time);
  PipelineRun run(network, first_step(options, network, found));
  begin_with(options, run, found, training, cut);
  Follower follower(signals);
  signals.watch_stops();
  const TrainingSummary summary = train(run, follower, training);
  if (summary.end == RunEnd::kStopped) return 128 + (signals.stop() ? signals.stop() : SIGTERM);
  run.collect_weights();
  return 0;
}

/// An option of a configuration, in which those that are left at their defaults are comments.
std::string told_of(const std::string& line) {
  return line.starts_with("# ") ? line.substr(2) : line;
}

/// All processes are told the same: not everything that decides numbers would be missed later.
void check_same_options(const Options& options, ProcessGroup* processes) {
  if (!processes) return;
  Options told = options;
  told.quiet = false;  // who speaks is decided elsewhere
  const std::string mine = config_text(told, "train", /*all=*/true) +
                           fmt::format("resume = {}\ndry-run = {}\n", told.resume, told.dry_run);
  const std::string first = processes->broadcast(mine);
  std::istringstream here(mine), there(first);
  for (std::string line, other; std::getline(here, line) && std::getline(there, other);) {
    PT_CHECK(line == other, kUsage,
             "{} was started with {} where process 0 has {}; all must be started with the same "
             "options",
             processes->name_of(processes->rank()), printable(told_of(line)),
             printable(told_of(other)));
  }
  PT_CHECK(mine == first, kUsage, "{} was started with other options than process 0",
           processes->name_of(processes->rank()));
}

/// CPUs of one kind: layouts of what is sent, and the bits of replicas, follow their vectors.
void check_same_vectors(ProcessGroup* processes) {
  if (!processes) return;
  const std::string mine = vector_instructions(), first = processes->broadcast(mine);
  PT_CHECK(mine == first, kResource,
           "{} computes with {}, process 0 with {}; use machines of one kind, or set "
           "PIPETRAIN_VECTORS=AVX2 on all",
           processes->name_of(processes->rank()), mine, first);
}

int train_in(Options& options, ProcessGroup* processes) {
  std::signal(SIGPIPE, SIG_IGN);  // hours of training must not end because a reader went away
  check_same_options(options, processes);
  check_same_vectors(processes);
  Signals signals;
  const bool leads = !processes || processes->leads();
  if (leads) resolve_verbosity(options);
  PT_CHECK(!options.resume_weights_only || !options.resume.empty(), kUsage,
           "--resume-weights-only says how to --resume; give that too");
  const std::optional<FoundCheckpoint> found = same_checkpoint(options, processes);
  const bool goes_on = found && !options.resume_weights_only;
  if (goes_on) take_over(*found, "train", options);
  // The head has been replaced already, in the model of the run.
  if (goes_on && options.num_classes > 0) {
    options.run.model.path = model_of(*found, "train");
    options.arguments.clear();
  }
  const fs::path resumed = goes_on ? folder_to_resume(options, *found) : fs::path();
  resolve_model(options, "train");
  resolve_plan(options);
  resolve_device(options, "train", processes);
  PT_CHECK(!(options.output == "-" && options.metrics == "-"), kUsage,
           "--output - and --metrics - both want standard output");
  // The bare command measures: without data it runs a fixed number of steps.
  OptimizationConfig& optimization = options.run.optimization;
  if (options.run.data.path == "synthetic" && optimization.max_steps < 0 &&
      optimization.epochs == 1)
    optimization.max_steps = 100;

  // A new head makes another model, which is then trained, resumed and written like any other.
  std::optional<FolderLock> lock;
  std::optional<UnusedFolder> early;
  if (options.num_classes > 0 && !goes_on && leads) {
    const fs::path folder = make_run_folder(options, {});
    lock.emplace(folder);  // before anything of another run there is replaced
    early.emplace(folder, options.run_dir.empty());
    replace_classifier(options, (early->path() / "model.onnx").string());
  }
  if (processes && options.num_classes > 0)
    options.run.model.path = processes->broadcast(options.run.model.path);
  PT_CHECK(!processes || options.run.pipeline.schedule != "auto", kUsage,
           "--schedule auto looks for one process; see what it chooses (pipetrain plan --schedule "
           "auto) and name that");
  if (options.run.pipeline.schedule == "auto") choose_schedule(options, {}, /*print_table=*/false);
  options.run.pipeline.brief_profile = !options.dry_run && options.trace.empty();
  PlannedNetwork network = plan_network(options.run, RunMode::kTrain, processes);
  std::optional<PipelineRun> run;
  if (!leads)
    return options.dry_run ? 0 : follow(options, network, found ? &*found : nullptr, signals);
  check_one_file(network.model().file, options.output);
  introduce(options, network);
  if (goes_on) introduce_resume(network, *found);
  if (options.dry_run) return 0;

  StatusFile status(options.status_file);  // refused before a folder is made
  const fs::path folder = early ? early->keep() : make_run_folder(options, resumed);
  if (!lock) lock.emplace(folder);
  if (resumed.empty() && options.run_dir.empty()) call_latest(folder);
  delete_unfinished(folder);
  delete_unfinished(folder / "checkpoints");
  const std::string output = options.output.empty() || options.output == "-"
                                 ? (folder / "trained.onnx").string()
                                 : options.output;
  if (goes_on && found->checkpoint.step >= network.total_steps() && fs::exists(output)) {
    log_info("train", "done     nothing is left to do: all {} steps are in {}",
             network.total_steps(), printable(output));
    if (processes) processes->broadcast("nothing to do");
    return 0;
  }
  const bool replaces_own = !resumed.empty() && fs::path(output) == folder / "trained.onnx";
  PT_CHECK(options.overwrite || replaces_own || !fs::exists(output), kUsage,
           "\"{}\" exists; give --overwrite or another --output", printable(output));
  check_folder_of(output);
  delete_stale_temporaries(output);
  copy_log_to(folder / "stderr.log");
  const std::string plan_path = (folder / "plan.json").string();
  const auto write_plan_and_profile = [&] {
    write_plan(plan_path, network.plan(), network.costs(), network.plan_request(),
               options.run.model.path, network.order());
    write_profile(folder / "profile.json", network.profile(), network.graph(),
                  options.run.model.path);
  };
  write_plan_and_profile();
  write_file(folder / "config.toml", config_of_run(options, network));
  if (!network.data().class_names.empty())
    write_file(folder / "classes.txt",
               fmt::format("{}\n", fmt::join(network.data().class_names, "\n")));
  const bool was_estimate = network.profile().is_estimate;
  EventLog events(options.metrics.empty() ? (folder / "events.jsonl").string() : options.metrics,
                  /*append=*/!resumed.empty());
  TensorBoard board(options.tensorboard ? folder / "tb" : fs::path());
  const double max_seconds =
      options.max_time.empty() ? 0 : parse_duration("--max-time", options.max_time);
  Progress progress(options.log_every, options.quiet, max_seconds);
  TrainingSummary summary;
  TimeAccount account;
  StepRecorder recorder(network, options.trace, options.trace_steps);
  try {
    events.run_start(options, network, folder.filename().string());
    events.plan(network, plan_path);
    TrainingOptions training;
    training.save = save_settings(options, network, folder);
    training.max_seconds = max_seconds;
    training.peak_flops = [&] { return peak_flops(network); };
    std::optional<ProgramCut> cut;
    if (processes) processes->broadcast("begin");
    run.emplace(network, first_step(options, network, found ? &*found : nullptr));
    begin_with(options, *run, found ? &*found : nullptr, training, cut);
    std::string memory, predicted;
    for (int s = 0; s < network.stages(); ++s) {
      const char* comma = s ? ", " : "";
      memory += comma + bytes_text(run->runtime().memory(s).total());
      predicted += comma + bytes_text(network.predicted_memory(s).total());
    }
    log_info("train", "memory   {} for the stages (predicted {}), taken before the first step",
             memory, predicted);
    Watcher watcher(*run, account, progress, events, board, recorder, status, signals);
    signals.watch_stops();
    summary = train(*run, watcher, training);
    progress.finish();
    if (was_estimate) write_plan_and_profile();
    if (summary.end == RunEnd::kStopped) {
      recorder.finish();
      return end_stopped(signals.stop() ? signals.stop() : SIGTERM, summary, events, status,
                         folder);
    }
    run->collect_weights();
    write_output(options, *run, output, (folder / "trained.onnx").string(), training.save, summary);
    recorder.finish();
    if (!summary.save_failure.empty()) {
      log_info("train", "saved    {}  (run: {})",
               options.output == "-" ? "standard output" : output, folder.string());
      PT_FAIL(kResource, "{}", summary.save_failure);
    }
  } catch (const Error& error) {
    progress.finish();
    events.error(error.what());
    status.end(error.kind() == ErrorKind::kDiverged ? "diverged" : "error",
               static_cast<int>(error.kind()));
    events.run_end(error.kind() == ErrorKind::kDiverged ? "diverged" : "error",
                   static_cast<int>(error.kind()), summary, "");
    stop_copying_log();
    throw;
  }
  const bool out_of_time = summary.end == RunEnd::kTime;
  const char* end = out_of_time                       ? "max_time"
                    : summary.end == RunEnd::kStalled ? "early_stop"
                                                      : "ok";
  events.run_end(end, 0, summary, output);
  status.end(end, 0);
  const double predicted = network.predicted_step_seconds();
  if (summary.steps > 1 && summary.steady_step_seconds > 0) {
    log_info("train",
             "done     {} steps in {:.1f} s · steady {} a step (predicted {}) · bubble {:.1f} % "
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
  log_info("train", "saved    {}  (run: {})", options.output == "-" ? "standard output" : output,
           folder.string());
  if (out_of_time)
    log_info("train", "time     --max-time is over after step {} of {} · resume: {}", summary.steps,
             network.total_steps(), resume_words(folder));
  if (network.data().synthetic)
    log_info("train",
             "next     pipetrain --model {} --data PATH   (these weights are from synthetic data)",
             printable(options.run.model.path));
  stop_copying_log();
  return 0;
}

}  // namespace

int train_command(Options& options) {
  return run_together([&](ProcessGroup* processes) { return train_in(options, processes); });
}

}  // namespace pipetrain
