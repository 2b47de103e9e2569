// Options of the pipeline: devices, stages, schedule, memory.
#include <algorithm>

#include "cli/options/option_table.h"
#include "partition/topology_file.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/schedule_file.h"

namespace pipetrain {

namespace {

constexpr int kMostDevices = 4096;  // as many stages as a schedule has at most

/// What some schedules ask for: with them in one value, alone for `pipetrain schedule`.
void describe_schedule(Table& table, OptionSpec& schedule, PipelineConfig& pipeline) {
  std::vector<std::string> with_memory;
  for (const ScheduleDescription& each : schedules())
    if (each.takes_memory) with_memory.push_back(each.name);
  const auto rows = [&pipeline, &with_memory](Table& to, const char* commands) {
    to.integer("--virtual-stages", pipeline.chunks, 1, "stages per device in interleaved schedules",
               commands)
        .affects(ResultEffect::kDerived);
    to.integer("--memory-units", pipeline.memory_units, 0,
               fmt::format("maximum number of micro-batches whose activations a device holds; 0: "
                           "one per stage for zb, otherwise what the schedule holds by itself; "
                           "for {}",
                           fmt::join(with_memory, ", ")),
               commands)
        .affects(ResultEffect::kDerived);
  };
  for (const ScheduleDescription& each : schedules()) schedule.words.push_back(each.name);
  Table inner;
  rows(inner, kPlanCommands);
  inner
      .real("--warm-up-tolerance", pipeline.warm_up_tolerance,
            "of 1f1b-auto: fraction of the speed to give up for memory", kPlanCommands)
      .affects(ResultEffect::kNone);
  for (OptionSpec& part : inner.specs) part.of_value = true;
  Table::nest(schedule, std::move(inner));
  rows(table, "schedule");
}

void describe_devices(Table& table, Options& options) {
  PipelineConfig& pipeline = options.run.pipeline;
  table
      .integer("--gpus", options.gpus, 1,
               "number of devices, also as --stages: each has one stage, or several in interleaved "
               "and V schedules; with --device cpu they are groups of CPU cores; with --replicas "
               "the sum of its numbers; mpirun distributes them over processes",
               "train profile plan simulate eval predict verify schedule")
      .affects(ResultEffect::kDerived)
      .aliases = {"--num-gpus", "--stages"};
  table.specs.back().in_short_help = true;
  table
      .choice("--device", options.device, {"auto", "cpu", "cuda", "reference"},
              "device type of the stages; auto: GPUs if --gpus or --gpu-ids is given or mpirun has "
              "started several processes (plan: only with --gpu-ids; simulate: never), else the "
              "CPU; reference: slow kernels for comparison",
              "train profile plan simulate eval predict verify generate")
      .affects(ResultEffect::kDerived)
      .environment = "PIPETRAIN_DEVICE";
  OptionSpec& ids =
      table
          .add("--gpu-ids", "N,N,…", "GPUs to use, one per device; a GPU may be repeated (0,0,0,0)",
               "train eval profile plan")
          .affects(ResultEffect::kDerived);
  ids.set = [&pipeline](const std::string& v) {
    pipeline.gpu_ids.clear();
    for (std::size_t begin = 0; begin <= v.size();) {
      const std::size_t comma = std::min(v.find(',', begin), v.size());
      pipeline.gpu_ids.push_back(parse_int("--gpu-ids", v.substr(begin, comma - begin), 0));
      begin = comma + 1;
    }
  };
  ids.get = [&pipeline] { return fmt::format("{}", fmt::join(pipeline.gpu_ids, ",")); };
  table
      .choice("--edge", pipeline.edge, {"auto", "copy", "nccl"},
              "how to transfer between GPUs; auto: direct copies where possible, else NCCL",
              "train eval")
      .affects(ResultEffect::kUnrecorded);
  table
      .flag("--deterministic", pipeline.deterministic,
            "bit-identical results in every run with the same cuts, on GPUs too: no NCCL sums over "
            "more than two replicas, which alone could change them",
            "train")
      .affects(ResultEffect::kUnrecorded);
}

/// Memory and time that stages may take, and where their times come from.
void describe_limits(Table& table, PipelineConfig& pipeline) {
  OptionSpec& memory = table
                           .add("--gpu-memory", "SIZE",
                                "memory limit of each device, for example 4GiB; 0: that of the "
                                "devices of --topology, "
                                "else none",
                                kPlanCommands)
                           .affects(ResultEffect::kNone);
  memory.set = [&pipeline](const std::string& v) {
    pipeline.memory_limit_bytes = static_cast<std::size_t>(parse_memory("--gpu-memory", v));
  };
  memory.get = [&pipeline] { return fmt::format("{}", pipeline.memory_limit_bytes); };
  OptionSpec& profile =
      table
          .path("--profile", pipeline.profile_path, PathUse::kRead, "FILE",
                "use this profile.json instead of measuring", "train plan simulate verify inspect")
          .completes({}, {"json"})
          .affects(ResultEffect::kNone);
  Table profile_settings;
  profile_settings
      .flag("--cache", pipeline.profile_cache, "cache kernel measurements", kPlanCommands)
      .affects(ResultEffect::kNone);
  Table::nest(profile, std::move(profile_settings));
  table.flag("--cache", pipeline.profile_cache, "cache kernel measurements",
             "profile eval predict");
  OptionSpec& timeout =
      table
          .add("--comm-timeout", "SECONDS",
               "stop after this time without progress, and report which device waits for which",
               "train eval")
          .affects(ResultEffect::kNone);
  timeout.set = [&pipeline](const std::string& v) {
    const double seconds =
        parse_real("--comm-timeout", !v.empty() && v.back() == 's' ? v.substr(0, v.size() - 1) : v);
    PT_CHECK(seconds > 0 && seconds <= 1e9, kUsage,
             "--comm-timeout must be more than 0 and at most 1e9 seconds, not {}", printable(v));
    pipeline.timeout_seconds = seconds;
  };
  timeout.get = [&pipeline] { return fmt::format("{}", pipeline.timeout_seconds); };
}

void describe_threads(Table& table, PipelineConfig& pipeline) {
  OptionSpec& threads = table
                            .automatic("--threads", pipeline.threads,
                                       "threads per CPU stage; auto: cores / stages, fewer for "
                                       "small kernels",
                                       kRunCommands,
                                       /*most=*/1024)
                            .affects(ResultEffect::kDerived);
  Table thread_settings;
  thread_settings.flag("--pin", pipeline.pin, "pin each CPU stage to its own cores", kRunCommands)
      .affects(ResultEffect::kNone);
  Table::nest(threads, std::move(thread_settings));
}

/// "sync", "async", "async:staleness=4", "backup:1".
ReplicaUpdates parse_replica_mode(const std::string& text, const ReplicaUpdates& before) {
  const std::string name = "--replica-mode";
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string mode = text.substr(0, colon);
  const std::string rest = text.substr(std::min(colon + 1, text.size()));
  check_choice(name, mode, {"sync", "async", "backup"});
  ReplicaUpdates updates = before;
  updates.backup = 0;
  if (mode == "backup") {
    updates.mode = ReplicaMode::kBackup;
    updates.backup = parse_int(name + " backup", rest, 1);
    return updates;
  }
  updates.mode = mode == "async" ? ReplicaMode::kAsync : ReplicaMode::kSync;
  if (rest.empty()) return updates;
  constexpr std::string_view kKey = "staleness=";
  PT_CHECK(mode == "async" && rest.starts_with(kKey), kUsage,
           "{} must be sync, async, async:staleness=N or backup:N, not {}", name, printable(text));
  updates.staleness = parse_int("--staleness", rest.substr(kKey.size()), 0);
  return updates;
}

std::string text_of_mode(const ReplicaUpdates& updates) {
  return updates.mode == ReplicaMode::kBackup  ? fmt::format("backup:{}", updates.backup)
         : updates.mode == ReplicaMode::kAsync ? "async"
                                               : "sync";
}

/// Replicas that do not wait for each other.
void describe_replica_updates(Table& table, ReplicaUpdates& updates) {
  OptionSpec& mode =
      table
          .add("--replica-mode", "sync|async|async:staleness=N|backup:N",
               "sync: replicas share each mini-batch and wait for each other; async: each computes "
               "whole mini-batches, and gradients are applied as they arrive; backup:N: an update "
               "uses the gradients that arrive first and discards those of the last N replicas",
               kPlanCommands)
          .affects(ResultEffect::kDerived);
  mode.set = [&updates](const std::string& v) { updates = parse_replica_mode(v, updates); };
  mode.get = [&updates] { return text_of_mode(updates); };
  mode.key = "mode";
  OptionSpec& staleness =
      table
          .add("--staleness", "N|auto",
               "for --replica-mode async: maximum age of the weights, in updates, when their "
               "gradient is applied; at least the number of other replicas; auto: four times that "
               "number",
               kPlanCommands)
          .affects(ResultEffect::kDerived);
  staleness.set = [&updates](const std::string& v) {
    updates.staleness = v == "auto" ? -1 : parse_int("--staleness", v, /*least=*/0);
  };
  staleness.get = [&updates] {
    return updates.staleness < 0 ? "auto" : fmt::format("{}", updates.staleness);
  };
}

/// The devices of each stage, and how they share its updates.
void describe_replicas(Table& table, Options& options) {
  PipelineConfig& pipeline = options.run.pipeline;
  OptionSpec& replicas =
      table
          .add("--replicas", "N,N,…|auto",
               "devices per stage, which share its micro-batches; auto: chosen by the planner",
               kScheduleCommands)
          .affects(ResultEffect::kDerived);
  replicas.set = [&pipeline](const std::string& v) {
    pipeline.replicas.clear();
    pipeline.plan_replicas = v == "auto";
    if (pipeline.plan_replicas) return;
    for (std::size_t begin = 0; begin <= v.size();) {
      const std::size_t comma = std::min(v.find(',', begin), v.size());
      pipeline.replicas.push_back(
          parse_int("--replicas", v.substr(begin, comma - begin), 1, kMostDevices));
      begin = comma + 1;
    }
  };
  replicas.get = [&pipeline] {
    return pipeline.plan_replicas ? "auto" : fmt::format("{}", fmt::join(pipeline.replicas, ","));
  };
  Table replica_settings;
  describe_replica_updates(replica_settings, pipeline.replica_updates);
  replica_settings
      .flag("--shard-optimizer", pipeline.shard_optimizer,
            "each replica updates a part of the tensors and alone keeps their optimizer state",
            kOptimizerCommands)
      .affects(ResultEffect::kNone);
  replica_settings
      .integer("--accumulators", pipeline.accumulators, 0,
               "sum gradients as a tree with N leaves, a power of two: results are bit-identical "
               "for every number of replicas that divides N; 0: sum in the order of micro-batches "
               "and replicas",
               "train")
      .affects(ResultEffect::kRecorded);
  replica_settings
      .choice_of<bool>("--compress", pipeline.bfloat16_sums, {{"none", false}, {"bf16", true}},
                       "bf16: gradients of replicas are rounded to bfloat16 before they are sent "
                       "and summed, and so are the sums: half the bytes between processes",
                       kOptimizerCommands)
      .affects(ResultEffect::kRecorded);
  replica_settings
      .choice_of<bool>("--data-sharding", options.run.data.shard_files,
                       {{"samples", false}, {"files", true}},
                       "what replicas divide: the samples of each mini-batch, or the files that "
                       "the pattern in --data names, of which each process opens its own",
                       "train")
      .affects(ResultEffect::kContent);
  Table::nest(replicas, std::move(replica_settings));
}

}  // namespace

void describe_pipeline(Table& table, Options& options) {
  table.group = "Pipeline";
  PipelineConfig& pipeline = options.run.pipeline;
  describe_devices(table, options);
  OptionSpec& schedule =
      table
          .add("--schedule", "NAME|FILE|auto",
               "pipeline schedule, see: pipetrain schedule list; auto: the best in simulation",
               kPlanCommands)
          .affects(ResultEffect::kDerived)
          .means(
              "plan",
              "pipeline schedule, see: pipetrain schedule list; auto: the best in simulation; "
              "default: auto; 1f1b with -o, --json, --split or --replicas; the plan's with --plan")
          .means("simulate",
                 "the only schedule to simulate, see: pipetrain schedule list; default: those of "
                 "--schedules");
  schedule.in_short_help = true;
  schedule.path = PathUse::kRead;
  schedule.names_file = names_schedule_file;
  schedule.set = [&options](const std::string& v) {
    options.run.pipeline.schedule = v;
    options.schedule_given = true;
  };
  schedule.get = [&pipeline] { return pipeline.schedule; };
  describe_schedule(table, schedule, pipeline);
  describe_replicas(table, options);
  table
      .path("--topology", pipeline.topology, PathUse::kRead, "FILE|NAME",
            "devices and links; default: as measured by doctor --measure", kPlanCommands)
      .completes(topology_names(), {"json"})
      .affects(ResultEffect::kNone);
  table
      .automatic("--micro-batches", pipeline.micro_batches,
                 "micro-batches per step; auto: up to 8, of at least 8 samples each",
                 "train profile plan simulate eval predict verify schedule")
      .affects(ResultEffect::kDerived)
      .means("simulate",
             "micro-batches per step; auto: 2, 4, 8 and 16, of at least one sample each")
      .aliases = {"--chunks", "--num-microbatches"};
  table.specs.back().in_short_help = true;
  table
      .automatic("--micro-batch-size", pipeline.micro_batch_size,
                 "samples per micro-batch, instead of --micro-batches", kRunCommands)
      .affects(ResultEffect::kDerived);
  describe_threads(table, pipeline);
  table
      .path("--plan", pipeline.plan_path, PathUse::kRead, "FILE", "use this plan.json",
            "train plan simulate")
      .completes({}, {"json"})
      .affects(ResultEffect::kDerived);
  table
      .list("--split", pipeline.split, "NODE,NODE",
            "nodes where stages begin, by name or position, instead of planning",
            "train plan simulate")
      .affects(ResultEffect::kDerived);
  table
      .choice_of<Recompute>(
          "--recompute", pipeline.recompute,
          {{"none", Recompute::kNone}, {"all", Recompute::kAll}, {"auto", Recompute::kAuto}},
          "recompute the forward pass instead of storing activations", kPlanCommands)
      .affects(ResultEffect::kNone)
      .aliases = {"--gradient-checkpointing"};
  describe_limits(table, pipeline);
}

}  // namespace pipetrain
