// pipetrain train: plan, train, export; the run folder keeps what was decided and what happened.
#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string_view>

#include "base/cores.h"
#include "base/error.h"
#include "base/file_errors.h"
#include "base/log.h"
#include "cli/commands/begin_training.h"
#include "cli/commands/choose_for_processes.h"
#include "cli/commands/commands.h"
#include "cli/commands/lr_find.h"
#include "cli/commands/replica_mode.h"
#include "cli/commands/run_folder.h"
#include "cli/commands/run_messages.h"
#include "cli/commands/run_observers.h"
#include "cli/commands/run_outputs.h"
#include "cli/commands/run_together.h"
#include "cli/commands/same_start.h"
#include "cli/commands/trained_output.h"
#include "cli/options/option_values.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/events.h"
#include "cli/output/mlflow.h"
#include "cli/output/status_file.h"
#include "cli/output/step_recorder.h"
#include "cli/output/tensorboard.h"
#include "cli/output/terminal.h"
#include "cli/output/time_shares.h"
#include "pipeline/runtime/last_instructions.h"
#include "processes/process_group.h"
#include "profile/link_measure.h"
#include "train/commits.h"
#include "train/export.h"
#include "train/resume.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Peak FLOP/s of all devices together; 0: unknown.
double peak_flops(const PlannedNetwork& network) {
  if (!network.config().pipeline.gpu_ids.empty() || network.processes()) return 0;
  const int threads = std::min(available_cores(), network.devices() * network.threads());
  return matrix_product_rate(threads, network.config().pipeline.profile_cache);
}

SaveSettings save_settings(const Options& options, const PlannedNetwork& network,
                           const fs::path& folder) {
  SaveSettings save;
  save.folder = folder / "checkpoints";
  // Weights trained on synthetic data are not worth saving.
  const bool wanted = !options.save_every.empty();
  save.every = SaveEvery::parse(wanted                     ? options.save_every
                                : network.data().synthetic ? "never"
                                                           : "1ep");
  save.may_wait = !wanted;
  save.least_seconds = 60;
  save.keep = options.keep;
  save.only_finite = options.run.optimization.on_nonfinite != OnNonfinite::kIgnore;
  save.stop_on_error = options.on_checkpoint_error == "fail";
  save.patience_seconds = options.run.pipeline.timeout_seconds;
  save.run = describe_run(network, settings_to_keep(options, network), recorded_settings(options));
  save.run.outputs = outputs_to_keep(options);
  return save;
}

/// The run of process 0.
class LeadingRun {
 public:
  LeadingRun(const Options& options, PlannedNetwork& network, const Start& start,
             RunFolder& run_folder, const std::string& output, StatusFile& status, Signals& signals)
      : options_(options),
        network_(network),
        start_(start),
        run_folder_(run_folder),
        folder_(run_folder.path()),
        output_(output),
        status_(status),
        signals_(signals),
        was_estimate_(network.profile().is_estimate),
        goes_on_here_(goes_on_in(folder_, start)),
        events_(options.metrics.empty() ? (folder_ / "events.jsonl").string() : options.metrics,
                /*append=*/options.metrics.empty() ? goes_on_here_ : !start.resumed.empty(),
                EventLog::kMostBytes,
                options.metrics.empty() ? OutputTakes::kFiles : OutputTakes::kPipesToo),
        journal_(folder_ / "journal.txt", /*append=*/goes_on_here_),
        board_(std::ranges::count(options.log_to, "tensorboard") > 0
                   ? folder_ / "tb"
                   : folder_in_log_to(options, "tensorboard")),
        mlflow_(folder_in_log_to(options, "mlflow"), folder_ / "mlflow-run.txt",
                /*goes_on=*/goes_on_here_, run_folder.name(), recorded_settings(options)),
        max_seconds_(most_seconds(options)),
        progress_(options.log_every, options.quiet, seconds_left(options, start.checkpoint()),
                  network.total_steps()),
        recorder_(network, run_folder.name(), options.trace, options.trace_steps,
                  start.goes_on ? start.found->checkpoint.step : 0) {}

  /// Returns the exit code.
  int run() {
    try {
      with_file_errors([&] { train_and_write(); });
    } catch (const Error& error) {
      end_failed(error);
      throw;
    } catch (const std::bad_alloc&) {
      end_failed(Error(ErrorKind::kResource, "not enough memory"));
      throw;
    }
    mlflow_.end(/*success=*/summary_.end != RunEnd::kStopped);
    if (summary_.end != RunEnd::kStopped) end_by_itself();
    stop_copying_log();
    return code_;
  }

 private:
  void end_failed(const Error& error) {
    progress_.finish();
    const char* end = error.kind() == ErrorKind::kDiverged ? "diverged" : "error";
    events_.error(error.what());
    status_.end(end, static_cast<int>(error.kind()), failed_process(error));
    mlflow_.end(/*success=*/false);
    events_.run_end(end, static_cast<int>(error.kind()), summary_, "");
  }

  /// Of several processes, the one that an error began in; -1: not known.
  int failed_process(const Error& error) const {
    const ProcessGroup* processes = network_.all_processes();
    if (!processes) return -1;
    if (processes->failed_together() >= 0) return processes->failed_together();
    if (const auto failure = processes->failure()) return failure->rank;
    return error.kind() == ErrorKind::kDevice ? -1 : 0;  // a process that is silent, for example
  }

  void train_and_write() {
    events_.run_start(options_, network_, run_folder_.name());
    events_.plan(network_, (folder_ / "plan.json").string());
    TrainingOptions training;
    training.save = save_settings(options_, network_, folder_);
    training.max_seconds = max_seconds_;
    training.peak_flops = [&] { return peak_flops(network_); };
    training.verify_every = options_.verify_every;
    if (start_.supervision) training.snapshot = &start_.supervision->snapshot();
    std::optional<ProgramCut> cut;
    if (network_.all_processes()) tell_to_begin();
    run_.emplace(network_, first_step(options_, network_, start_.checkpoint()),
                 FileWeights::kRelease);
    begin_with(options_, *run_, start_.checkpoint(), training, cut);
    std::optional<Commits> commits;
    begin_commits(*run_, start_, training, commits);
    log_remainders(*run_);
    log_memory(*run_);
    Watcher watcher(*run_,
                    {account_, progress_, events_, board_, mlflow_, recorder_, status_, journal_,
                     run_folder_, start_.supervision},
                    signals_);
    signals_.watch_stops();
    status_.begin();
    if (start_.supervision) {
      start_.supervision->note_begin(training.resumed ? training.resumed->step : 0);
    }
    summary_ = train(*run_, watcher, training);
    progress_.finish();
    run_folder_.set_latest();  // also where all steps had been done before
    if (commits) log_commits(*commits, summary_.seconds);
    if (was_estimate_) {
      account_.replace_estimate(network_);
      write_plan_and_profile(options_, network_, folder_);
      events_.plan(network_, (folder_ / "plan.json").string());
    }
    if (summary_.end == RunEnd::kStopped) {
      recorder_.finish();
      return end_stopped(signals_.stop() ? signals_.stop() : SIGTERM);
    }
    forget_what_was_off();
    run_->collect_weights();
    written_ = write_trained_model(options_, *run_, output_, (folder_ / "trained.onnx").string(),
                                   training.save, summary_);
    recorder_.finish();
    if (!summary_.save_failure.empty()) {
      log_saved(written_, folder_);
      PT_FAIL(kResource, "{}", summary_.save_failure);
    }
    check_skipped();
  }

  /// Tells the other processes where to keep their output.
  void tell_to_begin() const {
    const fs::path logs = fs::absolute(folder_ / "logs");
    std::error_code ignored;
    fs::create_directory(logs, ignored);
    network_.all_processes()->broadcast(logs.string());
  }

  /// A run that left out most of its steps has not trained the model, although it has an end. The
  /// search for a loss scale may take most of a short run.
  void check_skipped() const {
    const LossScaling scaling = network_.loss_scaling();
    const bool searches = scaling.adapts && run_->runtime().loss_scale().value > scaling.least;
    if (options_.run.optimization.on_nonfinite != OnNonfinite::kSkip || searches ||
        2 * summary_.skipped_steps <= summary_.steps)
      return;
    log_saved(written_, folder_);
    PT_FAIL(kDiverged,
            "{} of {} steps were skipped, since their gradients were not finite\n"
            "  try: a smaller --lr than {}, or --clip-norm 1",
            summary_.skipped_steps, summary_.steps, options_.run.optimization.learning_rate.peak);
  }

  /// A cached profile that steps of more than twice or less than half its time contradict was
  /// measured beside other load. Links are quickly measured again, and the network may have
  /// changed.
  void forget_what_was_off() const {
    constexpr double kFactor = 2, kFactorOfLinks = 1.25;
    constexpr std::int64_t kEnough = 8;
    const double predicted = network_.predicted_step_seconds();
    const double measured = summary_.steady_step_seconds;
    if (was_estimate_ || !network_.has_predicted_steps() || summary_.steps < kEnough ||
        measured <= 0 || predicted <= 0)
      return;
    const auto is_off = [&](double factor) {
      return measured >= factor * predicted || predicted >= factor * measured;
    };
    if (is_off(kFactorOfLinks)) network_.forget_measured_links();
    if (is_off(kFactor)) network_.forget_measurements();
  }

  /// Ends a run that a signal has stopped and that has been saved.
  void end_stopped(int signal) {
    code_ = 128 + signal;
    events_.signal(name_of_signal(signal), "save and stop");
    events_.run_end("interrupted", code_, summary_, "");
    status_.end("interrupted", code_);
    PT_CHECK(!summary_.last_checkpoint.empty(), kResource,
             "stopped after step {} by {}, but the checkpoint could not be saved", summary_.steps,
             name_of_signal(signal));
    log_info("train", "stopped  by {} after step {} · saved {}{} · resume: {}",
             name_of_signal(signal), summary_.steps, summary_.last_checkpoint.filename().string(),
             summary_.best ? fmt::format(" (the best so far: {})", words_on(*summary_.best)) : "",
             resume_command(options_, folder_));
  }

  void end_by_itself() {
    const char* end = summary_.end == RunEnd::kTime      ? "max_time"
                      : summary_.end == RunEnd::kStalled ? "early_stop"
                                                         : "ok";
    events_.run_end(end, 0, summary_, output_, written_.step);
    status_.end(end, 0);
    log_end(options_, network_, summary_, account_, recorder_, written_, folder_);
  }

  const Options& options_;
  PlannedNetwork& network_;
  std::optional<PipelineRun> run_;  // from its beginning on
  const Start& start_;
  RunFolder& run_folder_;
  fs::path folder_;
  std::string output_;
  StatusFile& status_;
  Signals& signals_;
  bool was_estimate_;
  bool goes_on_here_;  // in the folder of its first part
  EventLog events_;
  Journal journal_;
  TensorBoard board_;
  MlflowRun mlflow_;
  double max_seconds_;
  Progress progress_;
  TrainingSummary summary_;
  WrittenModels written_;
  TimeAccount account_;
  StepRecorder recorder_;
  int code_ = 0;
};

/// After a restart: what the process before has left in memory, or else on the disk. Empty:
/// nothing.
std::optional<FoundCheckpoint> left_behind(const Supervision& supervision) {
  const fs::path checkpoints = supervision.folder() / "checkpoints";
  if (std::optional<Checkpoint> newest = supervision.snapshot().newest())
    return FoundCheckpoint{checkpoints / checkpoint_name(newest->step), *std::move(newest), {}};
  return newest_checkpoint(checkpoints);
}

/// Finds the checkpoint to resume from and applies its settings.
Start take_up(Options& options, ProcessGroup* processes, Supervision* supervision) {
  PT_CHECK(!options.resume_weights_only || !options.resume.empty(), kUsage,
           "--resume-weights-only needs --resume");
  PT_CHECK(!options.resume_weights_only || !options.run.model.path.empty() ||
               !options.arguments.empty() || supervision,
           kUsage,
           "--resume-weights-only takes nothing but weights from the checkpoint; give --model, "
           "--data and what else the new run needs");
  Start start;
  start.supervision = supervision;
  const fs::path folder = supervision ? supervision->folder() : fs::path();  // of a restarted run
  if (!folder.empty()) start.found = left_behind(*supervision);
  if (std::optional<FoundCommit> found = commit_to_resume(options, processes)) {
    start.found = FoundCheckpoint{
        fs::path(options.run_dir) / "checkpoints" / checkpoint_name(found->name.step),
        std::move(found->state),
        {}};
    start.commit = found->name;
  }
  if (start.found) {  // which goes before what the run began with
    options.resume_weights_only = false;
    std::erase_if(options.given, [](const Assignment& s) { return s.first == "--resume"; });
  }
  if ((!folder.empty() || start.commit) && options.resume.empty())
    options.resume = "auto";  // in the same folder, where nothing else is; runs/latest is no guide
  const bool is_new = !folder.empty() && options.resume == "auto" && !options.resume_weights_only;
  if (!start.found && !is_new) {
    start.found = same_checkpoint(options, processes);
    start.is_saved = start.found.has_value();
  }
  start.goes_on = start.found && !options.resume_weights_only;
  if (start.goes_on) {
    take_over(*start.found, "train", options);
    // The head has been replaced already, in the model of the run.
    if (options.num_classes > 0) {
      options.run.model.path = model_of(*start.found, "train");
      options.arguments.clear();
    }
  }
  if (!folder.empty()) {
    options.run_dir = fs::proximate(folder).string();
    // The plan stays the same even if kernel times are not cached.
    if (options.run.pipeline.profile_path.empty() && fs::exists(folder / "profile.json"))
      options.run.pipeline.profile_path = (folder / "profile.json").string();
  }
  if (!start.goes_on) {
    check_values(options);  // which a checkpoint could have completed
    return start;
  }
  // A process that is restarted goes on in the folder that its run already writes to.
  start.resumed =
      start.is_saved ? folder_to_resume(options, *start.found) : fs::path(options.run_dir);
  if (!processes || processes->leads()) take_best_model(*start.found, start.resumed);
  start.output = take_outputs(*start.found, start.resumed, options);
  return start;
}

/// Resolves automatic options, except those that depend on the model.
void resolve(Options& options, ProcessGroup* processes) {
  resolve_model(options, "train");
  resolve_device(options, "train", processes);
  PT_CHECK(!(options.output == "-" && options.metrics == "-"), kUsage,
           "--output - and --metrics - cannot share standard output");
  // Without data the command is a benchmark of a fixed number of steps.
  OptimizationConfig& optimization = options.run.optimization;
  if (options.run.data.path == "synthetic" && optimization.max_steps < 0 &&
      std::ranges::none_of(options.settings,
                           [](const Assignment& one) { return one.first == "--epochs"; }))
    optimization.max_steps = 100;
}

/// A new last layer makes another model, which is then trained, resumed and exported like any
/// other.
void replace_head(Options& options, const Start& start, ProcessGroup* processes,
                  RunFolder& folder) {
  if (options.num_classes == 0) return;
  const bool leads = !processes || processes->leads();
  if (!start.goes_on && leads)
    replace_classifier(options, (folder.make_early(options) / "model.onnx").string());
  if (processes) options.run.model.path = processes->broadcast(options.run.model.path);
}

/// Runs a planned network on process 0; returns the exit code.
int lead(const Options& options, PlannedNetwork& network, const Start& start, RunFolder& run_folder,
         Signals& signals) {
  PT_CHECK(!start.goes_on || start.found->checkpoint.step <= network.total_steps(), kUsage,
           "the checkpoint is of step {}, this run has {} step{}; give a larger --max-steps or "
           "--epochs, or go on from an earlier checkpoint with --resume PATH",
           start.found->checkpoint.step, network.total_steps(),
           network.total_steps() == 1 ? "" : "s");
  StepReport begin;
  begin.step = start.goes_on ? start.found->checkpoint.step : 0;
  begin.total_steps = network.total_steps();
  begin.epoch = static_cast<double>(begin.step) / static_cast<double>(network.batches_per_epoch());
  StatusFile status(options.status_file, begin);  // refused before a folder is made
  const fs::path& folder = run_folder.begin(options, start.resumed);
  dump_last_instructions_to(folder / "instructions.txt");
  const std::string output = options.output.empty() || options.output == "-"
                                 ? (folder / "trained.onnx").string()
                                 : options.output;
  if (start.goes_on && start.found->checkpoint.step == network.total_steps() &&
      has_written_all(options, *start.found, output, folder)) {
    log_info("train", "done     nothing left to train: all {} steps are in {}",
             network.total_steps(), printable(output));
    if (network.all_processes()) network.all_processes()->broadcast({});
    status.end("ok", 0);
    return 0;
  }
  const bool replaces_own =
      !start.resumed.empty() &&
      (fs::path(output) == folder / "trained.onnx" ||
       (!start.output.empty() && fs::absolute(output).lexically_normal() == start.output));
  check_output(options, output, replaces_own);
  check_models(options, network, output, folder);
  leave_earlier_run(folder, options, start);
  run_folder.settle();  // not before the checkpoints of the model there are deleted
  if (start.supervision) start.supervision->note_folder(folder);
  copy_log_to(folder / "stderr.log");
  try {
    write_plan_and_profile(options, network, folder);
    write_configuration(options, network, folder, start.goes_on ? start.found->path : fs::path());
    return LeadingRun(options, network, start, run_folder, output, status, signals).run();
  } catch (const std::bad_alloc&) {
    stop_copying_log("out of memory");
    throw;
  } catch (const std::exception& error) {
    stop_copying_log(error.what());
    throw;
  }
}

int train_in(Options& options, ProcessGroup* processes, Supervision* supervision) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe must not end the training
  check_same_options(options, processes);
  check_same_vectors(processes);
  Signals signals;
  const bool leads = !processes || processes->leads();
  if (leads) resolve_verbosity(options);
  const bool has_folder = !options.run_dir.empty();  // which a restart gives, too
  Start start = take_up(options, processes, supervision);
  check_outputs("train", options);  // again, with what a checkpoint names
  if (leads) check_overwrite(options, start);
  if (leads) check_going_back(options, start);
  const bool gives_stages = options.gpus > 0;
  check_replica_mode(options, start.goes_on ? &start.found->checkpoint : nullptr);
  take_devices_of_processes(options, processes);
  resolve(options, processes);
  start.model = options.run.model.path;
  // Before anything that takes time.
  if (leads && options.lr != "find") check_run_outputs(options);
  const bool restarts = supervision && supervision->is_restart();
  if (leads && !start.goes_on && !restarts && options.lr != "find" && !options.output.empty() &&
      options.output != "-")
    check_output(options, options.output, /*replaces_own=*/false);
  const char* launched = std::getenv(kLaunchedVariable);
  if (leads && options.dry_run && !launched) check_run_folder(options);
  RunFolder folder(supervision || launched,
                   has_folder && !(launched && std::string_view(launched) == kNamedFolder));
  replace_head(options, start, processes, folder);
  if (options.lr == "find") {
    PT_CHECK(!processes && !start.found, kUsage,
             "--lr find needs a new run of a single process; leave out mpirun and --resume");
    PT_CHECK(!options.dry_run, kUsage, "--lr find runs steps; leave out --dry-run");
  }
  if (options.run.pipeline.schedule == "auto") {
    const FoundSchedules found = choose_schedule_together(options, {}, processes);
    if (leads) log_choice(options, found);
  }
  if (options.lr == "find") return find_learning_rate(options);
  choose_replicas(options, processes, gives_stages,
                  start.goes_on ? &start.found->checkpoint : nullptr);
  options.run.pipeline.brief_profile = !options.dry_run && options.trace.empty();
  PlannedNetwork network = plan_network(options.run, RunMode::kTrain, processes);
  PT_CHECK(options.verify_every == 0 || (!processes && !network.asynchronous()), kUsage,
           "--verify-every needs {}", processes ? "a single process" : "a synchronous --schedule");
  check_new_head(options, network, start);
  check_training(options, network, start);
  if (!leads) return options.dry_run ? 0 : follow(options, network, start, signals);
  check_one_file(network.model().file, options.output);
  check_replaced_model(network.model(), options.output);
  log_start(options, network);
  if (start.goes_on) {
    log_resume(options, network, *start.found);
    if (!start.commit) check_same_tensors(network, start.found->checkpoint);
  }
  return options.dry_run ? 0 : lead(options, network, start, folder, signals);
}

}  // namespace

int train_command(Options& options) {
  if (options.restarts == 0 || options.dry_run) {
    return run_together(options.run.pipeline.timeout_seconds, [&](ProcessGroup* processes) {
      return train_in(options, processes, nullptr);
    });
  }
  PT_CHECK(launch_of_environment().size == 1, kUsage,
           "--restarts needs a single process; whatever starts several has to restart them");
  resolve_verbosity(options);
  check_run_folder(options);
  constexpr double kLater = 5;  // than the process itself would notice that it stands still
  return supervise(options.restarts, options.run.pipeline.timeout_seconds + kLater,
                   [&](Supervision& s) { return train_in(options, nullptr, &s); });
}

}  // namespace pipetrain
