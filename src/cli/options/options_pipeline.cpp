// Options of the pipeline: devices, stages, schedule, memory.
#include <algorithm>

#include "cli/options/option_table.h"
#include "pipeline/schedule/schedule_file.h"

namespace pipetrain {

namespace {

/// What some schedules ask for: with them in one value, alone for `pipetrain schedule`.
void describe_schedule(Table& table, OptionSpec& schedule, PipelineConfig& pipeline) {
  const auto rows = [&pipeline](Table& to, const char* commands) {
    to.integer("--virtual-stages", pipeline.chunks, 1,
               "stages of each device in interleaved schedules", commands)
        .decides(Numbers::kOfRun);
    to.integer("--memory-units", pipeline.memory_units, 0,
               "of zb: micro-batches that a device may hold; 0: one a stage", commands)
        .decides(Numbers::kNone);
  };
  Table inner;
  rows(inner, kPlanCommands);
  inner
      .real("--warm-up-tolerance", pipeline.warm_up_tolerance,
            "of 1f1b-auto: speed given up for memory, as a share", kPlanCommands)
      .decides(Numbers::kNone);
  Table::nest(schedule, std::move(inner));
  rows(table, "schedule");
}

void describe_devices(Table& table, Options& options) {
  PipelineConfig& pipeline = options.run.pipeline;
  table
      .integer(
          "--gpus", options.gpus, 1,
          "stages, one a device; with --device cpu that many CPU stages; mpirun spreads them over "
          "processes",
          "train profile plan simulate eval predict verify schedule")
      .decides(Numbers::kOfRun)
      .aliases = {"--num-gpus", "--stages"};
  table.specs.back().in_short_help = true;
  table
      .choice("--device", options.device, {"auto", "cpu", "cuda", "reference"},
              "what the stages run on", kModelCommands)
      .decides(Numbers::kOfRun)
      .environment = "PIPETRAIN_DEVICE";
  OptionSpec& ids = table
                        .add("--gpu-ids", "N,N,…",
                             "which GPUs, one a device; one may stand several times (0,0,0,0)",
                             "train eval profile plan")
                        .decides(Numbers::kOfRun);
  ids.set = [&pipeline](const std::string& v) {
    pipeline.gpu_ids.clear();
    for (std::size_t begin = 0; begin <= v.size();) {
      const std::size_t comma = std::min(v.find(',', begin), v.size());
      pipeline.gpu_ids.push_back(
          static_cast<int>(parse_integer("--gpu-ids", v.substr(begin, comma - begin), 0)));
      begin = comma + 1;
    }
  };
  ids.get = [&pipeline] { return fmt::format("{}", fmt::join(pipeline.gpu_ids, ",")); };
  table
      .choice("--edge", pipeline.edge, {"auto", "copy", "nccl"},
              "how GPUs hand values to each other; auto: by copies where they reach each other",
              "train eval")
      .decides(Numbers::kUnrecorded);
  table
      .flag("--deterministic", pipeline.deterministic,
            "the same bits in every run on GPUs, too: what alone could change them, sums by NCCL "
            "over more than two replicas, is not done",
            "train")
      .decides(Numbers::kUnrecorded);
}

/// Memory and time that stages may take, and where their times come from.
void describe_limits(Table& table, PipelineConfig& pipeline) {
  OptionSpec& memory =
      table
          .add("--gpu-memory", "SIZE", "memory limit of each stage, for example 4GiB; 0: none",
               kPlanCommands)
          .decides(Numbers::kNone);
  memory.set = [&pipeline](const std::string& v) {
    pipeline.memory_limit_bytes = static_cast<std::size_t>(parse_memory("--gpu-memory", v));
  };
  memory.get = [&pipeline] { return fmt::format("{}", pipeline.memory_limit_bytes); };
  OptionSpec& profile = table
                            .path("--profile", pipeline.profile_path, PathUse::kRead, "FILE",
                                  "a profile.json instead of measuring", kPlanCommands)
                            .decides(Numbers::kNone);
  Table profile_settings;
  profile_settings
      .flag("--cache", pipeline.profile_cache, "remember measured kernels", kPlanCommands)
      .decides(Numbers::kNone);
  Table::nest(profile, std::move(profile_settings));
  table.flag("--cache", pipeline.profile_cache, "remember measured kernels",
             "profile eval predict");
  OptionSpec& timeout =
      table
          .add("--comm-timeout", "SECONDS", "without any progress: stop and say who waits for whom",
               "train eval")
          .decides(Numbers::kNone);
  timeout.set = [&pipeline](const std::string& v) {
    const double seconds =
        parse_real("--comm-timeout", !v.empty() && v.back() == 's' ? v.substr(0, v.size() - 1) : v);
    PT_CHECK(seconds > 0 && seconds <= 1e9, kUsage,
             "--comm-timeout must be more than 0 and at most 1e9 seconds, not {}", printable(v));
    pipeline.timeout_seconds = seconds;
  };
  timeout.get = [&pipeline] { return fmt::format("{}", pipeline.timeout_seconds); };
}

}  // namespace

void describe_pipeline(Table& table, Options& options) {
  table.group = "Pipeline";
  PipelineConfig& pipeline = options.run.pipeline;
  describe_devices(table, options);
  OptionSpec& schedule =
      table
          .add("--schedule", "NAME|FILE|auto",
               "see: pipetrain schedule list; auto: what the simulator finds best", kPlanCommands)
          .decides(Numbers::kOfRun);
  schedule.in_short_help = true;
  schedule.path = PathUse::kRead;
  schedule.names_file = names_schedule_file;
  schedule.set = [&options](const std::string& v) {
    options.run.pipeline.schedule = v;
    options.schedule_given = true;
  };
  schedule.get = [&pipeline] { return pipeline.schedule; };
  describe_schedule(table, schedule, pipeline);
  OptionSpec& replicas = table
                             .add("--replicas", "N,N,…|auto",
                                  "devices of each stage, which share its micro-batches; auto: as "
                                  "the planner finds best",
                                  kScheduleCommands)
                             .decides(Numbers::kOfRun);
  replicas.set = [&pipeline](const std::string& v) {
    pipeline.replicas.clear();
    pipeline.plan_replicas = v == "auto";
    if (pipeline.plan_replicas) return;
    for (std::size_t begin = 0; begin <= v.size();) {
      const std::size_t comma = std::min(v.find(',', begin), v.size());
      pipeline.replicas.push_back(
          static_cast<int>(parse_integer("--replicas", v.substr(begin, comma - begin), 1)));
      begin = comma + 1;
    }
  };
  replicas.get = [&pipeline] {
    return pipeline.plan_replicas ? "auto" : fmt::format("{}", fmt::join(pipeline.replicas, ","));
  };
  table
      .path("--topology", pipeline.topology, PathUse::kRead, "FILE|NAME",
            "devices and links; what doctor --measure found by default", kPlanCommands)
      .decides(Numbers::kNone);
  table
      .automatic("--micro-batches", pipeline.micro_batches,
                 "per update; auto: up to 8 of 8 samples or more",
                 "train profile plan simulate eval predict verify schedule")
      .decides(Numbers::kOfRun)
      .aliases = {"--chunks", "--num-microbatches"};
  table.specs.back().in_short_help = true;
  table
      .automatic("--micro-batch-size", pipeline.micro_batch_size,
                 "samples, instead of --micro-batches", kRunCommands)
      .decides(Numbers::kOfRun);
  OptionSpec& threads = table
                            .automatic("--threads", pipeline.threads,
                                       "of each CPU stage; auto: cores / stages", kRunCommands,
                                       /*most=*/1024)
                            .decides(Numbers::kOfRun);
  Table thread_settings;
  thread_settings.flag("--pin", pipeline.pin, "give each CPU stage cores of its own", kRunCommands)
      .decides(Numbers::kNone);
  Table::nest(threads, std::move(thread_settings));
  table
      .path("--plan", pipeline.plan_path, PathUse::kRead, "FILE", "a plan.json to follow",
            "train plan simulate")
      .decides(Numbers::kOfRun);
  table
      .list("--split", pipeline.split, "NODE,NODE",
            "nodes at which stages begin, instead of planning", "train plan simulate")
      .decides(Numbers::kOfRun);
  table
      .choice_of<Recompute>(
          "--recompute", pipeline.recompute,
          {{"none", Recompute::kNone}, {"all", Recompute::kAll}, {"auto", Recompute::kAuto}},
          "run the forward again instead of keeping activations", kPlanCommands)
      .decides(Numbers::kNone)
      .aliases = {"--gradient-checkpointing"};
  describe_limits(table, pipeline);
}

}  // namespace pipetrain
