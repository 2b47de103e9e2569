#include "cli/commands/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/commands/choose_for_processes.h"
#include "cli/commands/schedule_command.h"
#include "cli/commands/trace_command.h"
#include "cli/output/report.h"
#include "device/plugin.h"
#include "onnx_io/new_head.h"
#include "partition/plan_file.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/schedule_file.h"
#include "processes/process_group.h"
#include "train/program_maker.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

std::string names_of_networks() {
  std::string out;
  for (const ZooNetwork& network : zoo_networks())
    out += fmt::format("{}{}", out.empty() ? "" : ", ", network.name);
  return out;
}

// One function because it is a table.
std::vector<CommandSpec> all_commands() {
  constexpr bool kComputes = true;
  std::vector<std::string> networks, of_schedules = {"list", "show", "export", "check"};
  for (const ZooNetwork& network : zoo_networks()) networks.emplace_back(network.name);
  for (const ScheduleDescription& each : schedules()) of_schedules.push_back(each.name);
  return {
      {"train",
       "[MODEL]",
       "train a model in pipeline stages (the default command)",
       train_command,
       kComputes,
       {},
       "onnx"},
      {"inspect",
       "MODEL",
       "show a model's operators and whether it can be trained",
       inspect_command,
       !kComputes,
       {},
       "onnx"},
      {"profile",
       "MODEL",
       "measure the kernels of a training step",
       profile_command,
       kComputes,
       {},
       "onnx"},
      {"plan",
       "MODEL",
       "show where the model is cut, with the predicted step time and memory",
       plan_command,
       kComputes,
       {},
       "onnx"},
      {"simulate",
       "MODEL",
       "compare schedules and micro-batch counts by simulation",
       simulate_command,
       kComputes,
       {},
       "onnx"},
      {"verify",
       "MODEL",
       "check that a schedule is bit-identical to training on one device",
       verify_command,
       kComputes,
       {},
       "onnx"},
      {"tune",
       "MODEL",
       "find the fastest configuration by short runs, and write it to a file; takes the options of "
       "train",
       tune_command,
       kComputes,
       {},
       "onnx"},
      {"schedule", "list|show|export|check [NAME|FILE]",
       "show, export or check a schedule, without a model", show_schedule_command, !kComputes,
       of_schedules, "*"},
      {"launch",
       "-- train …",
       "train on several hosts with mpirun or srun, and continue when one of them fails",
       launch_command,
       !kComputes,
       {"train"}},
      {"trace",
       "diff FILE",
       "explain why a measured step took longer than predicted",
       compare_traces_command,
       !kComputes,
       {"diff"},
       "*"},
      {"report",
       "RUN…",
       "write an HTML report of a run: curves, stages, step timeline, slowest kernels; or a "
       "comparison of several",
       report_run_command,
       !kComputes,
       {},
       "/"},
      {"eval",
       "MODEL",
       "evaluate a model on data: loss and accuracy",
       eval_command,
       kComputes,
       {},
       "onnx"},
      {"predict",
       "MODEL",
       "write a model's outputs as npz, CSV or JSON Lines",
       predict_command,
       kComputes,
       {},
       "onnx"},
      {"generate",
       "MODEL",
       "continue a text with a language model, token by token",
       generate_command,
       kComputes,
       {},
       "onnx"},
      {"export",
       "CHECKPOINT",
       "export a checkpoint to ONNX, even while training runs",
       export_command,
       !kComputes,
       {},
       "/"},
      {"new", "NAME", "write an untrained model: " + names_of_networks(), new_command, !kComputes,
       networks},
      {"data",
       "inspect|convert PATH | make glyphs|spirals|bytes",
       "inspect, convert or generate a data set",
       data_command,
       !kComputes,
       {"inspect", "convert", "make", "glyphs", "spirals", "bytes"},
       "*"},
      {"doctor", "", "show this machine's CPU, memory, GPUs and libraries", doctor_command},
      {"completion",
       "bash|zsh|fish",
       "print a shell completion script",
       completion_command,
       !kComputes,
       {"bash", "zsh", "fish"}},
      {"help", "[COMMAND]", "show the help of a command", help_command},
  };
}

}  // namespace

const std::vector<CommandSpec>& commands() {
  static const std::vector<CommandSpec> list = all_commands();
  return list;
}

/// The GPUs to run on: those of --gpu-ids, or the first of the machine. Error (kResource) if there
/// are too few.
void choose_gpus(PipelineConfig& pipeline, int count) {
  const auto there = static_cast<int>(cuda_plugin().devices().size());
  if (pipeline.gpu_ids.empty()) {
    PT_CHECK(count <= there, kResource,
             "this machine has {}; to use one GPU for several devices: --gpu-ids {}", there,
             fmt::join(std::vector<int>(static_cast<std::size_t>(count), 0), ","));
    for (int id = 0; id < count; ++id) pipeline.gpu_ids.push_back(id);
  }
  for (const int id : pipeline.gpu_ids)
    PT_CHECK(id < there, kResource, "there is no GPU {}: this machine has {}", id, there);
}

/// The same for each of several processes: the GPUs of its own devices. Processes of one machine
/// that see the same GPUs take consecutive ones.
void choose_gpus_of_processes(PipelineConfig& pipeline, int count, ProcessGroup& processes) {
  const auto there = static_cast<int>(cuda_plugin().devices().size());
  PT_CHECK(count >= processes.size(), kUsage,
           "{} processes were started for {} GPU{}; give --gpus {} or more, or start fewer",
           processes.size(), count, count == 1 ? "" : "s", processes.size());
  const auto process_of = [&](int device) { return device * processes.size() / count; };
  // Not CUDA_VISIBLE_DEVICES: Slurm may give each task another GPU by the same number.
  std::string mine = processes.processes().host();
  for (int id = 0; id < there; ++id) mine += " " + cuda_plugin().identity(id);
  const std::vector<std::string> all = processes.all_gather(mine);
  int next = 0;
  for (int device = 0; device < count; ++device) {
    const int process = process_of(device);
    if (process < processes.rank() && all[static_cast<std::size_t>(process)] == mine) ++next;
  }
  ByteWriter chosen;
  for (int device = 0; device < count; ++device) {
    if (process_of(device) != processes.rank()) continue;
    const int id =
        pipeline.gpu_ids.empty() ? next++ : pipeline.gpu_ids[static_cast<std::size_t>(device)];
    chosen.put(id);
    chosen.put(there);
    chosen.put_text(id < there ? cuda_plugin().identity(id) : "");
  }
  // NCCL lets two processes share a GPU only where it takes them for two machines.
  const char* nccl_host = std::getenv("NCCL_HOSTID");
  const std::vector<std::string> hosts = processes.all_gather(
      fmt::format("{} {}", processes.processes().host(), nccl_host ? nccl_host : ""));
  const std::vector<std::string> all_chosen = processes.all_gather(chosen.take());
  std::map<std::pair<std::string, std::string>, int> process_of_gpu;
  pipeline.gpu_ids.clear();
  for (int process = 0; process < processes.size(); ++process) {
    const auto p = static_cast<std::size_t>(process);
    for (ByteReader reader(all_chosen[p]); !reader.at_end();) {
      const int id = reader.get<int>(), available = reader.get<int>();
      PT_CHECK(id < available, kResource,
               "device {} maps to GPU {} of {}, which has {}; start fewer processes on that "
               "machine, or give other --gpu-ids",
               pipeline.gpu_ids.size(), id, printable(hosts[p].substr(0, hosts[p].find(' '))),
               available);
      pipeline.gpu_ids.push_back(id);
      const auto [place, is_first] =
          process_of_gpu.emplace(std::pair(hosts[p], std::string(reader.get_text())), process);
      PT_CHECK(is_first || place->second == process, kUsage,
               "processes {} and {} would share GPU {} of {}, which NCCL does not allow; give each "
               "process its own GPU, or start one process with --gpu-ids {} to use one GPU for "
               "several devices",
               place->second, process, pipeline.gpu_ids.back(),
               printable(hosts[p].substr(0, hosts[p].find(' '))),
               fmt::join(std::vector<int>(static_cast<std::size_t>(count), pipeline.gpu_ids.back()),
                         ","));
    }
  }
}

namespace {

/// Takes schedule, micro-batches and devices from a plan file unless the command line sets them.
void take_plan(Options& options) {
  PipelineConfig& pipeline = options.run.pipeline;
  if (pipeline.plan_path.empty()) return;
  PT_CHECK(pipeline.split.empty() && pipeline.replicas.empty() && !pipeline.plan_replicas, kUsage,
           "--plan {} already sets the stages and their devices; leave out {}",
           printable(pipeline.plan_path), pipeline.split.empty() ? "--replicas" : "--split");
  PT_CHECK(pipeline.recompute == Recompute::kAuto, kUsage,
           "--plan {} already sets which stages recompute; leave out --recompute",
           printable(pipeline.plan_path));
  PT_CHECK(pipeline.schedule != "auto", kUsage,
           "--schedule auto cuts the model itself, but --plan {} has its cuts; leave out one of "
           "them, or name a schedule",
           printable(pipeline.plan_path));
  const PlanChoice plan = read_plan_outline(pipeline.plan_path);
  if (plan.schedule && !options.schedule_given) pipeline.schedule = *plan.schedule;
  if (plan.schedule == pipeline.schedule) {
    const PipelineConfig usual;
    if (plan.memory_units && pipeline.memory_units == usual.memory_units)
      pipeline.memory_units = *plan.memory_units;
    if (plan.warm_up_tolerance && pipeline.warm_up_tolerance == usual.warm_up_tolerance)
      pipeline.warm_up_tolerance = *plan.warm_up_tolerance;
  }
  // One micro-batch of a schedule that does not split mini-batches says nothing of one that does.
  const bool plan_is_whole = plan.schedule && planned_schedule(*plan.schedule).whole_mini_batches;
  const int count = plan.micro_batches.value_or(0);
  PT_CHECK(
      !plan_is_whole || count <= 1, kUsage,
      "--plan {}: its schedule {} does not split mini-batches, but micro_batches is {}; give 1",
      printable(pipeline.plan_path), plan.schedule.value_or(""), count);
  const bool split = !plan_is_whole && !planned_schedule(pipeline.schedule).whole_mini_batches;
  if (split && pipeline.micro_batches == 0 && pipeline.micro_batch_size == 0)
    pipeline.micro_batches = count;
  if (names_schedule_file(pipeline.schedule)) return;
  if (plan.virtual_stages && (!plan.schedule || plan.schedule == pipeline.schedule))
    pipeline.chunks = *plan.virtual_stages;
  int stages = 0;
  for (const DeviceRange& range : plan.devices) stages += range.count;
  const int devices = std::max(1, stages / stages_per_device(pipeline.schedule, pipeline.chunks));
  PT_CHECK(options.gpus == 0 || options.gpus == devices, kUsage,
           "--plan {} is for {} device{}, but {} {}; leave that out, or make another plan",
           printable(pipeline.plan_path), devices, devices == 1 ? "" : "s",
           pipeline.gpu_ids.empty() ? "--gpus is" : "the number of --gpu-ids is", options.gpus);
  options.gpus = devices;
}

/// Takes the number of devices, which --gpus leaves open, from what else says it. `processes`: of
/// the run, which have been considered already.
void take_devices(Options& options, const std::string& command, bool on_gpus,
                  const ProcessGroup* processes) {
  const PipelineConfig& pipeline = options.run.pipeline;
  take_plan(options);
  PT_CHECK(pipeline.split.empty() || !pipeline.plan_replicas, kUsage,
           "--replicas auto chooses the cuts; leave out --split, or give --replicas numbers");
  // Each schedule that is simulated may need another number of devices for the stages of --split.
  if (!processes && command != "simulate") options.gpus = devices_with_cuts(pipeline, options.gpus);
  if (!on_gpus || options.gpus > 0) return;
  for (const int count : pipeline.replicas) options.gpus += count;
  if (names_schedule_file(pipeline.schedule)) options.gpus = RunSchedule(pipeline).devices();
}

/// The devices of --replicas; 0 without. Error (kUsage) if --gpus is another number.
int devices_of_replicas(const Options& options) {
  int devices = 0;
  for (const int count : options.run.pipeline.replicas) devices += count;
  PT_CHECK(devices == 0 || options.gpus == 0 || devices == options.gpus, kUsage,
           "--replicas needs {} devices, but --gpus is {}", devices, options.gpus);
  return devices;
}

}  // namespace

int devices_of_files(Options options) {
  take_plan(options);
  const PipelineConfig& pipeline = options.run.pipeline;
  return names_schedule_file(pipeline.schedule) ? RunSchedule(pipeline).devices() : options.gpus;
}

void resolve_device(Options& options, const std::string& command, ProcessGroup* processes) {
  PipelineConfig& pipeline = options.run.pipeline;
  const std::string& device = options.device;
  PT_CHECK(pipeline.gpu_ids.empty() || (device != "cpu" && device != "reference"), kUsage,
           "--gpu-ids selects GPUs, but --device is {}", device);
  PT_CHECK(pipeline.replica_updates.waits() || command == "train" || command == "verify", kUsage,
           "{} supports only --replica-mode sync: steps of other modes cannot be predicted",
           command);
  // Those of plans and schedule files are checked when there is a program.
  check_order_of_sums(pipeline,
                      std::ranges::any_of(pipeline.replicas, [](int count) { return count > 2; }));
  const auto ids = static_cast<int>(pipeline.gpu_ids.size());
  PT_CHECK(ids == 0 || options.gpus == 0 || ids == options.gpus, kUsage,
           "--gpu-ids lists {} devices, but --gpus is {}", ids, options.gpus);
  if (ids > 0) options.gpus = ids;
  const bool gives_gpus = options.gpus > 0;
  // Replicas that do not wait for each other compute on CPUs.
  const bool has_processes = processes && pipeline.replica_updates.waits();
  const bool on_gpus = device == "cuda" || ids > 0 ||
                       (device == "auto" && (gives_gpus || has_processes) && command != "plan" &&
                        command != "simulate");
  take_devices(options, command, on_gpus, processes);
  if (on_gpus) {
    try {
      if (processes) {
        options.gpus = options.gpus > 0 ? options.gpus : processes->size();
        choose_gpus_of_processes(pipeline, options.gpus, *processes);
      } else {
        choose_gpus(pipeline, std::max(options.gpus, 1));
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      const int count = std::max(options.gpus, 1);
      const std::string asked = ids > 0            ? "--gpu-ids"
                                : gives_gpus       ? fmt::format("--gpus {}", options.gpus)
                                : device == "cuda" ? "--device cuda"
                                                   : "by several processes";
      const std::string instead =
          ids > 0 ? fmt::format("give --device cpu --gpus {} instead of --gpu-ids", count)
          : device == "cuda" ? "give --device cpu instead of --device cuda"
                             : "add --device cpu";
      PT_FAIL(kResource,
              "{} GPU{} requested ({}), but {}\n"
              "  run the same on this machine's CPU:   {}\n"
              "  see the plan without running it:      pipetrain plan --model {} --gpus {}",
              count, count == 1 ? "" : "s", asked, error.message(), instead,
              printable(options.run.model.path), count);
    }
  }
  PT_CHECK(pipeline.edge != "nccl" || !pipeline.gpu_ids.empty(), kUsage,
           "--edge nccl needs stages on GPUs: add --device cuda or --gpu-ids");
  const bool computes = command != "plan" && command != "simulate";
  PT_CHECK(!options.run.model.tensor_floats || !pipeline.gpu_ids.empty() || !computes, kUsage,
           "--precision tf32 is for GPUs; on the CPU use fp32, bf16 or fp16");
  PT_CHECK(
      options.run.optimization.loss_scale == 0 || options.run.model.precision == DType::kFloat16,
      kUsage, "--loss-scale applies to --precision fp16 only");
  const int devices = devices_of_replicas(options);
  pipeline.devices = devices > 0 ? devices : std::max(1, options.gpus);
  pipeline.backend = device == "reference" ? Backend::kReference : Backend::kCpu;
}

void resolve_forward(Options& options, const std::string& command) {
  if (options.device == "cuda") {
    log_info(command, "note     {} computes on CPU cores, not on GPUs", command);
    options.device = "cpu";
  }
  for (const char* name : {"--precision", "--gpus", "--micro-batches", "--micro-batch-size"}) {
    if (std::ranges::find(options.given, name, &Assignment::first) != options.given.end())
      log_warning(command, "{} has no effect: {} computes in float32 on one stage", name, command);
  }
  options.gpus = 0;
  resolve_device(options, command);
  if (const int threads = options.run.pipeline.threads; threads > 0) omp_set_num_threads(threads);
}

void resolve_model(Options& options, const std::string& command) {
  std::string& path = options.run.model.path;
  if (path.empty() && !options.arguments.empty()) {
    path = options.arguments.front();
    options.arguments.erase(options.arguments.begin());
  }
  PT_CHECK(options.arguments.empty(), kUsage,
           "unexpected argument \"{}\"; see: pipetrain {} --help",
           printable(options.arguments.front()), command);
  PT_CHECK(!path.empty(), kUsage,
           "no model given; use --model FILE, or create one: pipetrain new mlp -o mlp.onnx");
  const auto sets_lora = [&](bool as_a_whole) {
    return std::ranges::any_of(options.settings, [&](const Assignment& setting) {
      return setting.first == "--lora" && sets_whole(setting.second) == as_a_whole;
    });
  };
  PT_CHECK(sets_lora(/*as_a_whole=*/true) || !sets_lora(/*as_a_whole=*/false), kUsage,
           "--lora-targets and --lora-alpha need --lora N");
}

void replace_classifier(Options& options, const std::string& to) {
  const std::string from = options.run.model.path;
  const ModelConfig& model = options.run.model;
  const NewHead head = replace_head(from, to, model.loss.output, options.num_classes,
                                    options.run.optimization.seed, model.output_node);
  std::vector<std::string> tensors;
  for (const std::string& name : head.tensors) tensors.push_back(printable(name));
  log_info("train", "note     {}: new last layer in {}: \"{}\" for {} classes instead of {}",
           printable(from), printable(to), fmt::join(tensors, "\" and \""), options.num_classes,
           head.classes_before);
  if (options.run.model.adapters.rank > 0 && options.run.model.parameters.train_only.empty())
    log_info("train", "note     beside --lora the new layer is frozen; --train-only {} trains it",
             fmt::join(tensors, ","));
  options.run.model.path = to;
}

void check_folder_of(const std::string& output, const char* option) {
  if (is_special(output)) return;
  const fs::path folder = fs::path(output).parent_path();
  PT_CHECK(folder.empty() || fs::is_directory(folder), kUsage, "{}: there is no folder \"{}\"",
           option, printable(folder.string()));
  PT_CHECK(::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0, kResource,
           "{}: cannot write to the folder of \"{}\": {}", option, printable(output),
           std::strerror(errno));
}

void resolve_verbosity(const Options& options) {
  set_log_level(options.quiet     ? LogLevel::kError
                : options.verbose ? LogLevel::kDebug
                                  : LogLevel::kInfo);
}

int show_schedule_command(Options& options) {
  const PipelineConfig& pipeline = options.run.pipeline;
  ScheduleCommandOptions schedule;
  schedule.arguments = options.arguments;
  schedule.stages = options.gpus > 0 ? options.gpus : schedule.stages;
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (pipeline.micro_batches > 0)
    schedule.micro_batches = static_cast<int>(std::min(kMost, pipeline.micro_batches));
  PT_CHECK(!pipeline.plan_replicas, kUsage,
           "--replicas auto needs a model to plan; give one number of devices for each stage, such "
           "as 2,1,1");
  schedule.replicas = fmt::format("{}", fmt::join(pipeline.replicas, ","));
  if (!pipeline.replicas.empty()) {
    devices_of_replicas(options);  // as many as --gpus
    schedule.stages = static_cast<int>(pipeline.replicas.size());
  }
  schedule.chunks = pipeline.chunks;
  schedule.memory_units = pipeline.memory_units;
  schedule.times = options.times;
  schedule.latency = options.latency;
  schedule.costs = options.costs;
  schedule.width = options.width;
  schedule.svg = options.svg;
  schedule.csv = options.csv;
  schedule.output = options.output;
  schedule.color = options.color;
  schedule.json = options.json;
  return schedule_command(schedule);
}

int report_run_command(Options& options) {
  PT_CHECK(!options.arguments.empty(), kUsage,
           "report needs the folder of a run, for example: pipetrain report runs/latest");
  return report_command({options.arguments, options.output, options.curves});
}

int compare_traces_command(Options& options) {
  return trace_command({options.arguments, options.causes, options.json});
}

}  // namespace pipetrain
