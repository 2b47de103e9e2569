// pipetrain tune: candidates as they are measured, and the best one as a configuration file.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "base/document.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands/choose_for_processes.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_folder.h"
#include "cli/commands/run_together.h"
#include "cli/commands/same_start.h"
#include "cli/options/config_file.h"
#include "cli/output/output.h"
#include "partition/plan_file.h"
#include "partition/topology_file.h"
#include "pipeline/schedule/generate.h"
#include "processes/process_group.h"
#include "profile/machine.h"
#include "train/process_topology.h"
#include "train/saving.h"
#include "train/signals.h"
#include "train/tune.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

bool is_given(const Options& options, const std::string& name) {
  return std::any_of(options.settings.begin(), options.settings.end(),
                     [&](const Assignment& s) { return s.first == name; });
}

std::string precision_text(const TuneCandidate& candidate) {
  const ModelConfig& model = candidate.config.model;
  if (model.precision == DType::kFloat32) return model.tensor_floats ? "tf32" : "fp32";
  return model.precision == DType::kBFloat16 ? "bf16" : "fp16";
}

std::string schedule_text(const TuneCandidate& candidate) {
  const std::string& name = candidate.config.pipeline.schedule;
  const ScheduleDescription* schedule = find_schedule(name);
  const bool synchronous = !schedule || !is_asynchronous(schedule->rule);
  return is_one_stage(candidate) && synchronous ? "one stage" : printable(name);
}

int replicas_of(const TuneCandidate& candidate) {
  const std::vector<int>& replicas = candidate.config.pipeline.replicas;
  return replicas.empty() ? 1 : replicas.front();
}

/// Prints a line as soon as a candidate has been measured.
class Lines final : public TuneObserver {
 public:
  Lines(std::FILE* to, bool numeric, const Signals& signals)
      : to_(to), numeric_(numeric), signals_(signals) {}
  void on_search(int threads, std::size_t ways) override {
    log_debug("tune", "{} configurations with up to {} thread{} per stage", ways, threads,
              threads == 1 ? "" : "s");
  }
  void on_candidate(int index, const TuneCandidate& candidate) override {
    std::string out;
    if (index == 0) {
      out = fmt::format("{:>3}  {:<20}{:>8}{:>9}{:>7}{:>11}{}{:>12}{:>12}{:>12}\n", "", "schedule",
                        "devices", "threads", "micro", "recompute", numeric_ ? "  type" : "",
                        "predicted", "samples/s", "memory");
    }
    out += fmt::format("{:>3}  {:<20}{:>8}{:>9}{:>7}{:>11}{}{:>12.5g}", index,
                       schedule_text(candidate), candidate.devices, candidate.threads,
                       candidate.micro_batches, candidate.recompute ? "yes" : "no",
                       numeric_ ? "  " + precision_text(candidate) : "", candidate.predicted);
    if (candidate.failure.empty()) {
      out += fmt::format("{:>12.5g}{:>12}{}\n", candidate.measured,
                         bytes_text(candidate.peak_bytes), index == 0 ? "  as given" : "");
    } else {
      out += "  failed: " + candidate.failure.substr(0, candidate.failure.find('\n')) + "\n";
    }
    std::fputs(out.c_str(), to_);
    std::fflush(to_);
  }
  bool stop() override { return signals_.stop() != 0; }

 private:
  std::FILE* to_;
  bool numeric_;
  const Signals& signals_;
};

/// The options of the run as given, with what makes it the candidate.
Options options_of_candidate(const Options& options, const TuneCandidate& candidate) {
  const PipelineConfig& pipeline = candidate.config.pipeline;
  const bool whole =
      candidate.micro_batches == 1 && planned_schedule(pipeline.schedule).whole_mini_batches;
  std::vector<Assignment> chosen = {
      {"--model", options.run.model.path},
      {"--gpus", fmt::format("{}", candidate.devices)},
      {"--device", pipeline.gpu_ids.empty()
                       ? (pipeline.backend == Backend::kReference ? "reference" : "cpu")
                       : "cuda"},
      {"--schedule", pipeline.schedule},
      {"--threads", fmt::format("{}", candidate.threads)},
      {"--recompute", std::string(name_of(pipeline.recompute))}};
  const bool by_size = pipeline.micro_batch_size > 0;
  if (by_size)
    chosen.emplace_back("--micro-batch-size", fmt::format("{}", pipeline.micro_batch_size));
  else if (!whole)
    chosen.emplace_back("--micro-batches", fmt::format("{}", candidate.micro_batches));
  if (candidate.config.model.precision != options.run.model.precision)
    chosen.emplace_back("--precision", precision_text(candidate));
  if (replicas_of(candidate) > 1)
    chosen.emplace_back("--replicas", fmt::format("{}", fmt::join(pipeline.replicas, ",")));
  if (!pipeline.gpu_ids.empty())
    chosen.emplace_back("--gpu-ids", fmt::format("{}", fmt::join(pipeline.gpu_ids, ",")));
  Options out = options;
  out.settings = overlay(options.settings, chosen);
  // Not part of the configuration: where it is written, and redundant options.
  std::erase_if(out.settings, [&](const Assignment& s) {
    return s.first == "--output" || s.first == "--overwrite" ||
           (!by_size && s.first == "--micro-batch-size") ||
           ((by_size || whole) && s.first == "--micro-batches");
  });
  // What a value that was given held besides, which the chosen one does not.
  const PipelineConfig usual;
  const ScheduleDescription* schedule = find_schedule(pipeline.schedule);
  if (pipeline.chunks != usual.chunks && schedule && schedule->placement == Placement::kLoop)
    out.settings.emplace_back("--schedule", fmt::format(":virtual-stages={}", pipeline.chunks));
  if (pipeline.memory_units != usual.memory_units && schedule && schedule->takes_memory)
    out.settings.emplace_back("--schedule", fmt::format(":memory-units={}", pipeline.memory_units));
  if (pipeline.warm_up_tolerance != usual.warm_up_tolerance && schedule &&
      schedule->balances_warm_up)
    out.settings.emplace_back("--schedule",
                              fmt::format(":warm-up-tolerance={}", pipeline.warm_up_tolerance));
  if (pipeline.pin != usual.pin)
    out.settings.emplace_back("--threads", fmt::format(":pin={}", pipeline.pin));
  return out;
}

std::string configuration(const Options& options, const TuneResult& result) {
  const TuneCandidate& best = result.candidates[static_cast<std::size_t>(result.best)];
  const TuneCandidate& own = result.candidates.front();
  return config_text(options_of_candidate(options, best), "train", /*all=*/false) +
         fmt::format(
             "\n# {:.5g} samples/s measured ({:.5g} predicted), {:.5g} as given; on {}, {} cores\n",
             best.measured, best.predicted, own.measured, processor_name(), available_cores());
}

std::string document(const TuneResult& result) {
  Json rows = Json::array();
  for (const TuneCandidate& candidate : result.candidates) {
    Json row = {{"schedule", candidate.config.pipeline.schedule},
                {"devices", candidate.devices},
                {"replicas", replicas_of(candidate)},
                {"threads", candidate.threads},
                {"micro_batches", candidate.micro_batches},
                {"recompute", candidate.recompute},
                {"precision", precision_text(candidate)},
                {"predicted_samples_per_s", candidate.predicted},
                {"samples_per_s", candidate.measured},
                {"peak_bytes", candidate.peak_bytes}};
    if (!candidate.failure.empty()) row["failure"] = candidate.failure;
    rows.push_back(row);
  }
  return document_text("pipetrain.tune/1", {{"best", result.best},
                                            {"considered", result.considered},
                                            {"seconds", result.seconds},
                                            {"candidates", rows}});
}

/// Where the configuration is written. Error (kUsage) where it must not be.
std::string output_of_tune(const Options& options) {
  const std::string stem = fs::path(options.run.model.path).stem().string();
  std::string output = options.output.empty() ? stem + ".tuned.toml" : options.output;
  check_one_prints({{"--json", options.json}, {"--output -", output == "-"}});
  if (output != "-") check_output(options, output, /*replaces_own=*/false);
  return output;
}

void log_result(const TuneResult& result) {
  const TuneCandidate& best = result.candidates[static_cast<std::size_t>(result.best)];
  const TuneCandidate& own = result.candidates.front();
  std::size_t failed = 0;
  for (const TuneCandidate& candidate : result.candidates) failed += !candidate.failure.empty();
  log_info("tune",
           "measured {} of {} configurations in {:.1f} s, of which {:.1f} s profiling and "
           "simulation{}{}",
           result.candidates.size() - failed, std::max(result.considered, result.candidates.size()),
           result.seconds, result.search_seconds, result.out_of_time ? "; --budget reached" : "",
           result.interrupted ? "; stopped" : "");
  if (own.measured <= 0) return;
  log_info("tune", "best     {}: {:.5g} samples/s, {}",
           result.best == 0 ? "as given" : fmt::format("number {}", result.best), best.measured,
           result.best == 0 ? "nothing else was clearly faster"
                            : fmt::format("{:.1f} % more than as given",
                                          100 * (best.measured / own.measured - 1)));
}

/// A temporary model with a new last layer.
class TemporaryModel {
 public:
  explicit TemporaryModel(Options& options) : options_(options), path_(options.run.model.path) {
    if (options.num_classes == 0) return;
    file_ = (fs::temp_directory_path() / fmt::format("pipetrain-tune-{}.onnx", getpid())).string();
    replace_classifier(options, file_);
  }
  ~TemporaryModel() {
    std::error_code ignored;
    if (file_.empty()) return;
    fs::remove(file_, ignored);
    fs::remove(file_ + ".data", ignored);
  }
  TemporaryModel(const TemporaryModel&) = delete;
  TemporaryModel& operator=(const TemporaryModel&) = delete;
  void give_back_path() { options_.run.model.path = path_; }

 private:
  Options& options_;
  std::string path_, file_;
};

TuneScope scope_of(const Options& options, ProcessGroup* processes) {
  const PipelineConfig& pipeline = options.run.pipeline;
  for (const char* name : {"--plan", "--split", "--replicas"})
    PT_CHECK(!is_given(options, name), kUsage,
             "tune chooses cuts and replicas itself; leave out {}", name);
  for (const char* name : {"--dry-run", "--resume"})
    PT_CHECK(!is_given(options, name), kUsage, "tune measures new runs; leave out {}", name);
  PT_CHECK(options.lr != "find", kUsage,
           "tune measures training at a learning rate; give --lr a number, or leave it out");
  TuneScope scope;
  scope.budget_seconds = parse_duration("--budget", options.budget);
  scope.schedules = !options.schedule_given;
  scope.threads = pipeline.threads == 0 && pipeline.gpu_ids.empty() && !processes;
  scope.recompute = pipeline.recompute == Recompute::kAuto;
  scope.micro_batches =
      options.allow_numeric && pipeline.micro_batches == 0 && pipeline.micro_batch_size == 0;
  scope.precision = options.allow_numeric && !is_given(options, "--precision");
  scope.asynchronous = options.allow_numeric && scope.schedules && !processes;
  scope.most_devices = options.gpus > 0           ? options.gpus
                       : pipeline.gpu_ids.empty() ? available_cores()
                                                  : static_cast<int>(pipeline.gpu_ids.size());
  return scope;
}

int tune_in(Options& options, ProcessGroup* processes) {
  check_same_options(options, processes);
  check_same_vectors(processes);
  Signals signals;
  const bool leads = !processes || processes->leads();
  if (leads) resolve_verbosity(options);
  resolve_model(options, "tune");
  const bool gives_stages = options.gpus > 0;
  take_devices_of_processes(options, processes);
  resolve_device(options, "tune", processes);
  PT_CHECK(!processes || options.num_classes == 0, kUsage,
           "--num-classes needs a single process here; leave out mpirun");
  const std::string output = leads ? output_of_tune(options) : "";
  TuneScope scope = scope_of(options, processes);
  if (options.run.pipeline.schedule == "auto") {
    options.run.pipeline.schedule = "1f1b";
    scope.schedules = true;
    scope.asynchronous = options.allow_numeric && !processes;
  }
  if (processes) check_files_of_process(options.run.pipeline);
  choose_replicas(options, processes, gives_stages);
  if (processes && options.run.pipeline.topology.empty())
    scope.topology = topology_of_processes(*processes, options.run.pipeline.devices,
                                           measured_topology(), options.run.pipeline);
  TemporaryModel model(options);
  signals.watch_stops();
  if (!leads) {
    follow_tune(options.run, *processes, [&] { return signals.stop() != 0; });
    return 0;
  }
  Lines lines(options.json || output == "-" ? stderr : stdout, options.allow_numeric, signals);
  const TuneResult result = tune(options.run, scope, lines, processes);
  model.give_back_path();
  log_result(result);
  if (result.candidates.front().measured > 0 || !result.interrupted) {
    write_or_print(output, configuration(options, result));
    if (output != "-")
      log_info("tune", "saved    {} · train: {}pipetrain --config {}", printable(output),
               processes ? fmt::format("mpirun -n {} ", processes->size()) : "", printable(output));
  }
  if (options.json) print(document(result));
  // The signal may have reached another process.
  return result.interrupted ? 128 + (signals.stop() != 0 ? signals.stop() : SIGTERM) : 0;
}

}  // namespace

int tune_command(Options& options) {
  return run_together(options.run.pipeline.timeout_seconds,
                      [&](ProcessGroup* processes) { return tune_in(options, processes); });
}

}  // namespace pipetrain
