#include "cli/commands/choose_for_processes.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/index.h"
#include "base/input_file.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands/commands.h"
#include "cli/options/resume_command_line.h"
#include "partition/topology_file.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/schedule_file.h"
#include "processes/process_group.h"
#include "processes/processes.h"
#include "train/planned_network.h"
#include "train/process_agreement.h"
#include "train/process_topology.h"

namespace pipetrain {
namespace {

std::string text_of(int stages, int replicas) {
  return fmt::format("{} stage{}{}", stages, stages == 1 ? "" : "s",
                     replicas == 1 ? "" : fmt::format(" x {} replicas", replicas));
}

/// The devices that the stages of --split, or of a resumed checkpoint, need; 0: neither is given,
/// or it is refused later.
int devices_of_cuts(const PipelineConfig& pipeline) {
  const std::size_t cuts = pipeline.split.empty() ? pipeline.cuts.size() : pipeline.split.size();
  if (cuts == 0 || pipeline.plan_replicas || !find_schedule(pipeline.schedule)) return 0;
  const int stages = static_cast<int>(cuts) + 1;
  const int on_each = stages_per_device(pipeline.schedule, pipeline.chunks);
  return (stages + on_each - 1) / on_each;
}

/// The replicas that a checkpoint's run had of each stage, if it had as many devices and the same
/// schedule, and no other stages are asked for; otherwise 0.
int replicas_before(const Checkpoint& checkpoint, const PipelineConfig& pipeline, int devices) {
  const std::vector<int> of_stages = devices_of_stages(checkpoint);
  if (of_stages.empty() || checkpoint.run.value("schedule") != pipeline.schedule) return 0;
  const int replicas = of_stages.front(), of_cuts = devices_of_cuts(pipeline);
  const auto stages = std::ssize(of_stages);
  const bool as_many = std::ranges::count(of_stages, replicas) == stages &&
                       std::int64_t{replicas} * stages == devices;
  return as_many && (of_cuts == 0 || of_cuts == stages) ? replicas : 0;
}

/// The network of a candidate. A file that one process cannot read is an error in all of them, so
/// that all go on alike.
Network network_of_all(const RunConfig& config, ProcessGroup& processes, const Network* same_data) {
  std::optional<Network> network;
  std::optional<Error> failed;
  try {
    network.emplace(config, RunMode::kTrain, &processes, same_data);
  } catch (const Error& error) {
    failed = error;
  }
  processes.fail_together(failed);
  return *std::move(network);
}

}  // namespace

void check_files_of_process(const PipelineConfig& pipeline) {
  if (!pipeline.topology.empty()) static_cast<void>(named_topology(pipeline.topology));
  if (!pipeline.profile_path.empty())
    static_cast<void>(InputFile(pipeline.profile_path, ErrorKind::kUsage));
}

int devices_with_cuts(const PipelineConfig& pipeline, int gpus) {
  const int of_cuts = pipeline.replicas.empty() ? devices_of_cuts(pipeline) : 0;
  if (of_cuts == 0 || (gpus > 0 && pipeline.split.empty())) return gpus;
  PT_CHECK(gpus == 0 || gpus == of_cuts, kUsage,
           "--split names {} stages for {} device{}, but {} {}; leave that out, or give --split "
           "other nodes",
           pipeline.split.size() + 1, of_cuts, of_cuts == 1 ? "" : "s",
           pipeline.gpu_ids.empty() ? "--gpus is" : "the number of --gpu-ids is", gpus);
  return of_cuts;
}

void take_devices_of_processes(Options& options, ProcessGroup* processes) {
  const PipelineConfig& pipeline = options.run.pipeline;
  const int given = options.gpus > 0 ? options.gpus : static_cast<int>(pipeline.gpu_ids.size());
  if (processes && given > 0) devices_with_cuts(pipeline, given);
  const bool open = options.gpus == 0 && pipeline.gpu_ids.empty() && pipeline.replicas.empty() &&
                    pipeline.plan_path.empty() && !names_schedule_file(pipeline.schedule);
  if (!open) return;
  // Also where one process is left of several.
  if (const Launch launch = launch_of_environment();
      !launch.launcher.empty() && options.run.data.shard_files && pipeline.split.empty() &&
      !pipeline.plan_replicas) {
    options.run.pipeline.replicas = {launch.size};
    return;
  }
  if (!processes) return;
  options.gpus = processes->size();
  const int of_cuts = devices_of_cuts(pipeline);
  if (of_cuts == 0) return;
  const bool replicates = describe_schedule(pipeline.schedule).takes_replicas;
  if (options.gpus > of_cuts && (!replicates || options.gpus % of_cuts != 0)) {
    PT_CHECK(pipeline.split.empty(), kUsage,
             "{} processes were started, but the {} stages of --split are for {} device{}; start "
             "as many, {}or fewer",
             options.gpus, pipeline.split.size() + 1, of_cuts, of_cuts == 1 ? "" : "s",
             replicates ? "a multiple of that, " : "");
    // Those of the checkpoint: other stages go on from it.
    options.run.pipeline.cuts.clear();
    options.run.pipeline.order.clear();
    return;
  }
  options.gpus = std::max(options.gpus, of_cuts);  // a process may have several
}

void choose_replicas(Options& options, ProcessGroup* processes, bool were_given,
                     const Checkpoint* resumed) {
  PipelineConfig& pipeline = options.run.pipeline;
  if (!processes || were_given || options.gpus != processes->size() || !pipeline.gpu_ids.empty() ||
      pipeline.plan_replicas || !pipeline.plan_path.empty() || pipeline.schedule == "auto" ||
      !describe_schedule(pipeline.schedule).takes_replicas)
    return;
  const int devices = options.gpus;
  const int kept = resumed ? replicas_before(*resumed, pipeline, devices) : 0;
  if (kept > (pipeline.shard_optimizer ? 1 : 0)) {
    if (kept > 1) pipeline.replicas.assign(at(devices / kept), kept);
    return;
  }
  check_files_of_process(pipeline);
  std::unique_ptr<PlannedNetwork> first;  // whose data the others take
  std::optional<Error> refused;
  double least = 0;
  std::string others;
  int chosen = 0;
  const int fewest = pipeline.shard_optimizer ? std::min(2, devices) : 1;
  for (int replicas = fewest; replicas <= devices; ++replicas) {
    if (devices % replicas != 0) continue;
    const int stages = devices / replicas;
    if (const int of_cuts = devices_of_cuts(pipeline); of_cuts != 0 && stages != of_cuts) continue;
    RunConfig config = options.run;
    config.pipeline.devices = devices;
    if (replicas > 1) config.pipeline.replicas.assign(at(stages), replicas);
    try {
      auto network = std::make_unique<PlannedNetwork>(
          ProfiledNetwork(network_of_all(config, *processes, first.get())));
      if (network->stages() != stages || network->devices() != devices) continue;
      const double seconds = network->predicted_step_seconds();
      others += fmt::format("{}{} {}", others.empty() ? "" : ", ", text_of(stages, replicas),
                            seconds_text(seconds));
      if (chosen == 0 || seconds < least) {
        least = seconds;
        chosen = replicas;
      }
      if (!first) first = std::move(network);
    } catch (const Error& error) {
      // The same in all processes: they plan from the same numbers.
      if (error.kind() != ErrorKind::kUsage && error.kind() != ErrorKind::kResource) throw;
      refused = error;
    }
  }
  if (chosen == 0 && refused) throw Error(*refused);
  PT_CHECK(chosen > 0, kUsage,
           "{} processes were started, but the model cannot be divided among them; give --stages, "
           "or start fewer",
           devices);
  if (chosen > 1) pipeline.replicas.assign(at(devices / chosen), chosen);
  log_info("plan", "chose    {} for {} processes; predicted steps: {}",
           text_of(devices / chosen, chosen), devices, others);
}

FoundSchedules choose_schedule_together(Options& options, SearchScope scope,
                                        ProcessGroup* processes) {
  if (!processes) return choose_schedule(options, scope);
  PipelineConfig& pipeline = options.run.pipeline;
  PipelineConfig any = pipeline;
  any.schedule = "1f1b";
  any.replicas.clear();
  any.plan_replicas = false;
  const CoreShare cores = share_cores(any, RunSchedule(any).devices(), processes);
  scope.several_processes = true;
  if (pipeline.topology.empty())
    scope.topology =
        topology_of_processes(*processes, pipeline.devices, measured_topology(), pipeline);
  if (!pipeline.gpu_ids.empty()) scope.processors = different_gpus(pipeline.gpu_ids, processes);
  FoundSchedules found;
  const int threads = std::exchange(pipeline.threads, cores.threads);
  ByteWriter mine;
  if (processes->leads()) {
    found = choose_schedule(options, scope);
    put_choice(mine, pipeline);
  }
  const std::string bytes = processes->broadcast(mine.take());
  pipeline.threads = threads;
  if (processes->leads()) return found;
  ByteReader reader(bytes);
  take_choice(reader, pipeline);
  return found;
}

}  // namespace pipetrain
