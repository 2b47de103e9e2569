// pipetrain profile, plan and simulate: results that people can read and scripts can edit.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/document.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands/choose_for_processes.h"
#include "cli/commands/commands.h"
#include "cli/commands/pipedream_plan.h"
#include "cli/commands/run_together.h"
#include "cli/commands/same_start.h"
#include "cli/options/option_table.h"
#include "cli/output/kernel_rates.h"
#include "cli/output/output.h"
#include "cli/output/terminal.h"
#include "device/plugin.h"
#include "partition/plan_dot.h"
#include "partition/plan_file.h"
#include "pipeline/program/check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/schedule_file.h"
#include "pipeline/simulate/critical_path.h"
#include "pipeline/simulate/memory_use.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/view/render.h"
#include "pipeline/view/svg.h"
#include "processes/process_group.h"
#include "profile/link_measure.h"
#include "profile/measure_device.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

using Json = nlohmann::ordered_json;

/// What is planned is a full mini-batch, the only one that the file of a schedule is written for.
void plan_full_batches_of_file(RunConfig& config) {
  if (names_schedule_file(config.pipeline.schedule)) config.optimization.drop_last = true;
}

void prepare(Options& options, const std::string& command, ProcessGroup* processes = nullptr) {
  if (!processes || processes->leads()) resolve_verbosity(options);
  resolve_model(options, command);
  resolve_device(options, command, processes);
  plan_full_batches_of_file(options.run);
  // A named topology describes devices that need not be present.
  options.run.pipeline.estimate = !options.run.pipeline.topology.empty();
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

/// Whether the stage before, on the same device, makes a stage's inputs: no receive buffer has
/// them.
bool reads_own_device(const Program& program, int stage) {
  for (int m = 0; m < program.micro_batches; ++m) {
    if (program.device_of(stage - 1, m) == program.device_of(stage, m)) return true;
  }
  return false;
}

/// The predicted memory peak of the fullest device: when, and of what.
std::string fullest_device(const PlannedNetwork& network) {
  const Program& program = network.predicted_program();
  std::vector<StageBytes> stages;
  const auto bytes = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  for (const StagePlan& stage : network.plan().stages) {
    const int number = static_cast<int>(stages.size());
    StageBytes& out = stages.emplace_back();
    out.activations = bytes(stage.saved_bytes);
    if (stage.recompute && number > 0 && reads_own_device(program, number))
      out.kept_inputs = bytes(network.costs().forward_bytes[static_cast<std::size_t>(stage.first)]);
    out.working = bytes(stage.memory.transient_bytes);
    out.weights = bytes(stage.memory.weight_bytes) / std::max(1, stage.weight_versions);
    out.fixed = bytes(stage.memory.gradient_bytes + stage.memory.optimizer_bytes);
  }
  const std::vector<DeviceBytes> peaks = peak_bytes(program, stages);
  const auto most =
      std::max_element(peaks.begin(), peaks.end(),
                       [](const DeviceBytes& a, const DeviceBytes& b) { return a.peak < b.peak; });
  const auto device = static_cast<std::size_t>(most - peaks.begin());
  const auto text = [](std::int64_t count) { return bytes_text(static_cast<std::size_t>(count)); };
  return fmt::format(
      "peak  {} on device {}{}: weights and optimizer {}, activations {}, receive "
      "buffers {}, workspace {}\n",
      text(most->peak), device,
      most->index < 0
          ? ""
          : fmt::format(
                " at {}",
                to_text(program, program.device[device][static_cast<std::size_t>(most->index)])),
      text(most->weights), text(most->activations), text(most->buffers), text(most->working));
}

bool is_given(const Options& options, std::string_view name) {
  return std::ranges::find(options.given, name, &Assignment::first) != options.given.end();
}

PipeDreamPlanOptions pipedream_options(const Options& options) {
  PT_CHECK(options.svg.empty() && options.dot.empty() && !options.schedule_given, kUsage,
           "--pipedream-profile plans a profile, not a model: it takes neither --svg nor --dot nor "
           "--schedule");
  for (const char* name : {"--gpu-memory", "--recompute", "--micro-batches", "--micro-batch-size",
                           "--batch-size", "--split", "--plan"}) {
    PT_CHECK(!is_given(options, name), kUsage,
             "--pipedream-profile plans a profile, not a model: {} has no effect; leave it out",
             name);
  }
  PT_CHECK(options.run.pipeline.topology.empty() || !is_given(options, "--bandwidth"), kUsage,
           "--topology {} gives the bandwidth of every link; leave out --bandwidth",
           printable(options.run.pipeline.topology));
  PT_CHECK(!options.json || options.output != "-", kUsage,
           "--json prints the plan and --output - the profile; leave out one of them");
  PipeDreamPlanOptions plan;
  plan.profile = options.pipedream_profile;
  plan.devices = options.gpus;
  plan.topology = options.run.pipeline.topology;
  plan.bytes_per_second = options.bandwidth;
  const std::vector<int>& replicas = options.run.pipeline.replicas;
  if (!replicas.empty()) {
    PT_CHECK(
        std::all_of(replicas.begin(), replicas.end(), [](int r) { return r == 1; }), kUsage,
        "--pipedream-profile takes --replicas auto, or 1,1,… for that many stages of one device");
    plan.stages = static_cast<int>(replicas.size());
    plan.replication = false;
    if (plan.devices == 0) plan.devices = plan.stages;
    PT_CHECK(plan.devices == plan.stages, kUsage, "--replicas needs {} devices, but --gpus is {}",
             plan.stages, plan.devices);
  }
  plan.compat = !options.compat.empty();
  plan.fewer_machines = options.fewer_machines;
  if (!options.activation_compression.empty())
    plan.activation_compression =
        parse_real("--activation-compression", options.activation_compression);
  for (const char* name : {"--fewer-machines", "--activation-compression"}) {
    PT_CHECK(plan.compat || !is_given(options, name), kUsage,
             "{} is for PipeDream's own planner; add --compat pipedream, or leave it out", name);
  }
  plan.output = options.output;
  plan.json = options.json;
  return plan;
}

/// The simulated events, stretched to the predicted step, whose wake-up they do not have.
Events events_to_predicted_step(const PlannedNetwork& network) {
  Events events = network.prediction().events;
  if (network.asynchronous() || network.prediction().makespan <= 0) return events;
  const double stretch = network.predicted_step_seconds() / network.prediction().makespan;
  for (auto& device : events) {
    for (Event& event : device) {
      event.start *= stretch;
      event.end *= stretch;
    }
  }
  return events;
}

/// Stages, notes, reasons for the cuts, memory, bounds and the critical path, as text.
void print_plan(const PlannedNetwork& network) {
  print(plan_table(network));
  constexpr std::size_t kMostLines = 16;
  for (const std::string& note : network.plan().notes) print("note  " + note + "\n");
  for (std::size_t i = 0; i < std::min(kMostLines, network.plan().cut_reasons.size()); ++i)
    print("cut   " + network.plan().cut_reasons[i] + "\n");
  if (network.plan().cut_reasons.size() > kMostLines)
    print(fmt::format("cut   … and {} more\n", network.plan().cut_reasons.size() - kMostLines));
  print(fullest_device(network));
  print(fmt::format("bound {} ({}); this plan takes {:.1f} % more · planned in {}\n",
                    seconds_text(network.plan().lower_bound_seconds),
                    network.plan().lower_bound_reason, network.plan().gap() * 100,
                    seconds_text(network.plan().planning_seconds)));
  if (!network.asynchronous()) {
    print("critical path of the step:\n" +
          to_text(network.predicted_program(),
                  critical_path(network.predicted_program(), network.predicted_costs(),
                                network.prediction().events),
                  4));
  }
  if (network.devices() <= 32)
    print(render_rows(network.predicted_program(), events_to_predicted_step(network), 100));
}

}  // namespace

int profile_command(Options& options) {
  prepare(options, "profile");
  const PlannedNetwork network = plan_network(options.run);
  const std::string document =
      profile_text(network.profile(), network.graph(), options.run.model.path);
  if (!options.output.empty() && options.output != "-")
    write_profile(options.output, network.profile(), network.graph(), options.run.model.path);
  if (options.json || options.output == "-") {
    print(document);
    return 0;
  }
  std::string table = fmt::format("{:<32}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "node", "forward",
                                  "input grad", "weight grad", "params", "saved");
  for (const ChainCost& element : network.costs().elements) {
    table += fmt::format(
        "{:<32}{:>12}{:>12}{:>12}{:>12}{:>12}\n", first_characters(printable(element.name), 31),
        seconds_text(element.forward_seconds), seconds_text(element.input_gradient_seconds),
        seconds_text(element.weight_gradient_seconds), bytes_text(element.parameter_bytes),
        bytes_text(element.saved_bytes));
  }
  print(table);
  print(fmt::format("{} per micro-batch of {} on {} ({} thread{} per stage, {} busy at once)\n",
                    seconds_text(network.profile().total_seconds(network.graph())),
                    network.micro_batch(), network.profile().device, network.threads(),
                    network.threads() == 1 ? "" : "s", network.profile().busy_threads));
  if (network.profile().backend == "cpu") {
    const double peak = measure_matrix_product(network.threads()) * network.threads();
    print(kernel_rates_table(network.profile(), network.graph(), peak));
  } else if (!options.run.pipeline.gpu_ids.empty()) {
    ProfileOptions measured;
    measured.use_cache = options.run.pipeline.profile_cache;
    measured.tensor_floats = options.run.model.tensor_floats;
    Device& gpu = cuda_plugin().open(options.run.pipeline.gpu_ids.front());
    const DeviceSpeed roof = measure_device_speed(gpu, options.run.model.precision, measured);
    print(roofline_table(network.profile(), network.graph(), roof));
  }
  return 0;
}

namespace {

int plan_in(Options& options, ProcessGroup* processes) {
  check_same_options(options, processes);
  const bool gives_stages = options.gpus > 0;
  take_devices_of_processes(options, processes);
  prepare(options, "plan", processes);
  PipelineConfig& pipeline = options.run.pipeline;
  const bool open = pipeline.plan_path.empty() && pipeline.split.empty() &&
                    pipeline.replicas.empty() && !pipeline.plan_replicas;
  const bool document = options.json || !options.output.empty();
  std::optional<FoundSchedules> found;
  const int devices = std::max(1, options.gpus);
  if (pipeline.schedule == "auto" || (open && !options.schedule_given && !document)) {
    // Processes without a device cannot take part.
    found = choose_schedule_together(
        options,
        {.micro_batches = pipeline.micro_batches == 0 && pipeline.micro_batch_size == 0,
         .fewer_devices = !processes},
        processes);
  } else if (open && !options.schedule_given && options.gpus > 1) {
    log_info("plan",
             "note     this plan is for 1f1b, the default of train; --schedule auto searches for "
             "the best schedule");
  }
  if (!found) choose_replicas(options, processes, gives_stages);
  const PlannedNetwork network = plan_network(options.run, RunMode::kTrain, processes);
  if (processes && !processes->leads()) return 0;
  if (found) log_choice(options, network.micro_batches(), network.predicted_step_seconds());
  const std::string title = std::filesystem::path(options.run.model.path).filename().string();
  if (!options.svg.empty()) {
    write_or_print(options.svg,
                   plan_svg(network.plan(), network.predicted_program(), network.predicted_events(),
                            title, network.memory_limit_bytes(), network.predicted_buckets()));
  }
  if (!options.dot.empty())
    write_or_print(options.dot, plan_dot(network.plan(), network.costs(), title));
  if (!options.output.empty() && options.output != "-")
    write_plan(options.output, network.plan(), network.costs(), network.plan_request(),
               options.run.model.path, network.order());
  if (options.json || options.output == "-") {
    print(plan_text(network.plan(), network.costs(), network.plan_request(), options.run.model.path,
                    network.order()));
    return 0;
  }
  if (options.svg == "-" || options.dot == "-") return 0;  // a document is printed alone
  if (found) print(candidates_table(*found, network, devices));
  print_plan(network);
  return 0;
}

}  // namespace

int plan_command(Options& options) {
  if (!options.pipedream_profile.empty()) {
    const PipeDreamPlanOptions plan = pipedream_options(options);
    resolve_verbosity(options);
    return plan_pipedream_profile(plan);
  }
  for (const char* name :
       {"--bandwidth", "--compat", "--fewer-machines", "--activation-compression"}) {
    PT_CHECK(!is_given(options, name), kUsage,
             "{} applies to --pipedream-profile, not to a model; leave it out", name);
  }
  check_one_prints({{"--json", options.json},
                    {"--output -", !options.json && options.output == "-"},
                    {"--svg -", options.svg == "-"},
                    {"--dot -", options.dot == "-"}});
  return run_together(options.run.pipeline.timeout_seconds,
                      [&](ProcessGroup* processes) { return plan_in(options, processes); });
}

namespace {

/// Whether the default list of schedules is compared.
bool compares_usual_schedules(const Options& options) {
  return !is_given(options, "--schedules") && !options.schedule_given;
}

/// Those of --schedules, else the one of --schedule if that is given.
std::vector<std::string> schedules_to_simulate(const Options& options) {
  if (is_given(options, "--schedules") || !options.schedule_given) {
    std::vector<std::string> schedules = split_list(options.schedules);
    PT_CHECK(!schedules.empty(), kUsage, "--schedules needs at least one name, such as 1f1b");
    return schedules;
  }
  const std::string& schedule = options.run.pipeline.schedule;
  PT_CHECK(schedule != "auto", kUsage,
           "--schedule auto searches, which plan and train do; here name a schedule, or several "
           "with --schedules");
  return {schedule};
}

/// The rows of a simulation, as a table and as JSON.
class SimulatedRows {
 public:
  SimulatedRows(double jitter, std::uint64_t seed) : jitter_{.compute = jitter, .seed = seed} {}

  bool empty() const { return rows_.empty(); }
  const Json& json() const { return rows_; }
  const std::string& table() const { return table_; }

  /// Adds a row unless it is there: a fixed batch has the same micro-batches whatever is asked for.
  void add(const std::string& schedule, const PlannedNetwork& network) {
    if (!known_.emplace(schedule, network.micro_batches()).second) return;
    const double step = network.predicted_step_seconds();
    const double bubble = network.predicted_bubble();
    std::string memory;
    Json bytes = Json::array();
    for (int s = 0; s < network.stages(); ++s) {
      const std::size_t total = network.predicted_memory(s).total();
      memory += (memory.empty() ? "" : ", ") + bytes_text(total);
      bytes.push_back(total);
    }
    // The spread of the step time under jitter, in proportion to the simulated round.
    const JitterResult spread =
        simulate_jitter(network.predicted_program(), network.predicted_costs(), jitter_);
    const double scale = step / network.prediction().makespan;
    table_ += fmt::format("| {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.1f} % | {} | {} |\n",
                          printable(schedule), network.micro_batches(), step * 1e3,
                          spread.p50 * scale * 1e3, spread.p95 * scale * 1e3, bubble * 100, memory,
                          network.asynchronous() ? "stashed versions" : "current");
    rows_.push_back({{"schedule", schedule},
                     {"devices", network.devices()},
                     {"stages", network.stages()},
                     {"micro_batches", network.micro_batches()},
                     {"step_ms", step * 1e3},
                     {"p50_ms", spread.p50 * scale * 1e3},
                     {"p95_ms", spread.p95 * scale * 1e3},
                     {"bubble", bubble},
                     {"peak_bytes", bytes}});
  }

 private:
  Jitter jitter_;
  std::set<std::pair<std::string, std::int64_t>> known_;
  Json rows_ = Json::array();
  std::string table_ =
      "| schedule | micro-batches | step ms | p50 | p95 | bubble | memory per stage | weights "
      "|\n|---|---:|---:|---:|---:|---:|---|---|\n";
};

/// What a comparison leaves out since it cannot train this run, or does not fit into memory.
class LeftOut {
 public:
  void add(const std::string& name, const Error& error) {
    if (!first_) first_ = error;
    notes_.emplace_back(name, error.message());
  }
  /// Says why. Throws the first error where nothing is left.
  void report(bool nothing_left) const {
    if (nothing_left && first_) throw Error(*first_);
    for (const auto& [name, reason] : notes_)
      log_info("simulate", "note     {} is left out: {}", name, reason);
  }

 private:
  std::optional<Error> first_;
  std::vector<std::pair<std::string, std::string>> notes_;
};

}  // namespace

int simulate_command(Options& options) {
  prepare(options, "simulate");
  PT_CHECK(options.jitter >= 0 && options.jitter <= 2, kUsage,
           "--jitter must be a fraction from 0 to 2, such as 0.05, not {}", options.jitter);
  SimulatedRows rows(options.jitter, options.run.optimization.seed);
  LeftOut left_out;
  const std::int64_t batch = options.run.optimization.batch_size;
  for (const std::string& schedule : schedules_to_simulate(options)) {
    const PipelineConfig& pipeline = options.run.pipeline;
    std::vector<std::int64_t> counts = {pipeline.micro_batches};
    const ScheduleDescription* description = find_schedule(schedule);
    const bool drains = description && !is_asynchronous(description->rule);
    const bool whole = description && sends_whole_mini_batches(description->rule);
    if (counts[0] == 0 && pipeline.micro_batch_size == 0 && drains) {
      counts = {2, 4, 8, 16};
      std::erase_if(counts, [&](auto count) { return count > batch; });
      if (counts.empty()) counts = {1};
    }
    for (const std::int64_t count : counts) {
      RunConfig config = options.run;
      config.pipeline.schedule = schedule;
      plan_full_batches_of_file(config);
      config.pipeline.micro_batches = whole ? 0 : count;
      if (whole) config.pipeline.micro_batch_size = 0;
      if (const int needed = devices_with_cuts(config.pipeline, options.gpus); needed > 0)
        config.pipeline.devices = needed;
      PT_CHECK(count <= batch, kUsage,
               "--micro-batches {} are more than the {} samples of --batch-size", count, batch);
      try {
        rows.add(schedule, plan_network(config));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kResource) {  // more micro-batches may fit
          left_out.add(count == 0 ? schedule
                                  : fmt::format("{} with {} micro-batch{}", schedule, count,
                                                count == 1 ? "" : "es"),
                       error);
          continue;
        }
        if (error.kind() != ErrorKind::kUsage || !compares_usual_schedules(options)) throw;
        left_out.add(schedule, error);
        break;
      }
    }
  }
  left_out.report(rows.empty());
  print(options.json ? document_text("pipetrain.simulation/1", {{"rows", rows.json()}})
                     : rows.table());
  return 0;
}

}  // namespace pipetrain
