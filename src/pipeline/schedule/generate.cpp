#include "pipeline/schedule/generate.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/setting.h"
#include "pipeline/program/complete.h"
#include "pipeline/schedule/schedule_table.h"
#include "pipeline/schedule/warm_up.h"

namespace pipetrain {
namespace {

using schedule::Schedule;

int stages_per_device(Placement placement, int chunks) {
  switch (placement) {
    case Placement::kChain:
      return 1;
    case Placement::kLoop:
      return chunks;
    case Placement::kV:
      return 2;
  }
  return 1;
}

void check_sizes(const ScheduleOptions& options, const ScheduleDescription& schedule) {
  constexpr int kMaximumStages = 4096;
  constexpr int kMaximumMicroBatches = 1 << 20;
  PT_CHECK(options.stages >= 1 && options.stages <= kMaximumStages, kUsage,
           "a pipeline needs 1 to {} stages, got {}", kMaximumStages, options.stages);
  PT_CHECK(options.micro_batches >= 1 && options.micro_batches <= kMaximumMicroBatches, kUsage,
           "a step, and an epoch of an asynchronous schedule, has 1 to {} micro-batches, not {}",
           kMaximumMicroBatches, options.micro_batches);
  if (schedule.placement == Placement::kLoop) {
    PT_CHECK(options.chunks >= 1 && options.chunks <= options.stages, kUsage,
             "schedule '{}' needs 1 to {} chunks on each device, got {}", schedule.name,
             options.stages, options.chunks);
  }
  const int per_device = stages_per_device(schedule.placement, options.chunks);
  PT_CHECK(options.stages % per_device == 0, kUsage,
           "schedule '{}' runs {} stages on each device, so the number of stages must be a "
           "multiple of that, got {}",
           schedule.name, per_device, options.stages);
}

void check_per_stage(const ScheduleOptions& options, const ScheduleDescription& schedule) {
  const auto stages = static_cast<std::size_t>(options.stages);
  PT_CHECK(options.recompute.empty() || options.recompute.size() == stages, kUsage,
           "recompute is given for {} stages, but there are {}", options.recompute.size(), stages);
  PT_CHECK(options.replicas.empty() || options.replicas.size() == stages, kUsage,
           "replicas are given for {} stages, but there are {}", options.replicas.size(), stages);
  constexpr int kMaximumDevices = 1 << 16;
  for (std::size_t s = 0; s < options.replicas.size(); ++s) {
    PT_CHECK(options.replicas[s] >= 1 && options.replicas[s] <= kMaximumDevices, kUsage,
             "stage {} needs 1 to {} replicas, got {}", s, kMaximumDevices, options.replicas[s]);
    PT_CHECK(options.replicas[s] == 1 || schedule.takes_replicas, kUsage,
             "schedule '{}' cannot replicate a stage; use one replica each, or 1f1b",
             schedule.name);
  }
  PT_CHECK(options.warm.empty() || schedule.takes_warm_up, kUsage,
           "schedule '{}' has no warm-up to set", schedule.name);
  PT_CHECK(options.warm.empty() || options.warm.size() == stages, kUsage,
           "the warm-up is given for {} stages, but there are {}", options.warm.size(), stages);
  for (std::size_t s = 0; s < options.warm.size(); ++s) {
    PT_CHECK(options.warm[s] >= 0 && options.warm[s] <= kMostWarmUp, kUsage,
             "the warm-up of stage {} must not be negative or huge, got {}", s, options.warm[s]);
  }
}

void check_rest(const ScheduleOptions& options, const ScheduleDescription& schedule) {
  PT_CHECK(options.memory_units >= 0 && options.memory_units <= (1 << 20), kUsage,
           "the micro-batches that a device may hold must not be negative or huge, got {}",
           options.memory_units);
  PT_CHECK(options.memory_units == 0 || schedule.takes_memory, kUsage,
           "schedule '{}' does not support a limit on the micro-batches held; use zb or 1f1b",
           schedule.name);
  PT_CHECK(options.micro_batches_per_update >= 0, kUsage,
           "micro-batches per update must not be negative, got {}",
           options.micro_batches_per_update);
  PT_CHECK(options.micro_batches_per_update == 0 || schedule.rule == UpdateRule::kDoubleBuffer,
           kUsage,
           "schedule '{}' has fixed micro-batches per update; only pipedream-2bw lets you set them",
           schedule.name);
  PT_CHECK(!options.gradient_sync || schedule.rule == UpdateRule::kSync, kUsage,
           "schedule '{}' makes each stage update alone, so it cannot clip a global norm or tie "
           "weights over stages; use a synchronous schedule such as 1f1b",
           schedule.name);
}

void check_warm_up(const ScheduleOptions& options) {
  const auto ahead = [&](std::size_t s) {
    return std::int64_t{options.warm[s]} * options.replicas[s];
  };
  for (std::size_t s = 1; s < options.warm.size(); ++s) {
    PT_CHECK(ahead(s) <= ahead(s - 1), kUsage,
             "the warm-up must not rise from stage to stage, but stage {} has {} and stage {} has "
             "{}: it would wait for ever",
             s - 1, ahead(s - 1), s, ahead(s));
  }
}

/// A micro-batch reads the weights before the last update, so that update must be complete when the
/// micro-batch starts: a group is at least as large as the warm-up.
void choose_micro_batches_per_update(ScheduleOptions& options) {
  int least = 1;
  for (std::size_t s = 0; s < options.replicas.size(); ++s) {
    least = std::max({least, options.warm[s] * options.replicas[s], options.replicas[s]});
  }
  if (options.micro_batches_per_update == 0)
    options.micro_batches_per_update = std::max(least, options.stages);
  PT_CHECK(options.micro_batches_per_update >= least, kUsage,
           "schedule 'pipedream-2bw' needs at least {} micro-batches per update here, as many as "
           "a stage runs ahead, got {}; use more, or fewer stages",
           least, options.micro_batches_per_update);
}

/// Options without gaps.
ScheduleOptions resolved(const ScheduleOptions& given, const Schedule& schedule) {
  const ScheduleDescription& description = schedule.description;
  check_sizes(given, description);
  check_per_stage(given, description);
  check_rest(given, description);
  ScheduleOptions options = given;
  const auto stages = static_cast<std::size_t>(options.stages);
  options.recompute.resize(stages, false);
  if (options.replicas.empty()) options.replicas.assign(stages, 1);
  if (schedule.warm_up == nullptr) return options;

  if (description.splits_backward && options.memory_units == 0) {
    options.memory_units = std::max(options.stages, options.warm.empty() ? 0 : options.warm[0] + 1);
  }
  if (options.warm.empty()) options.warm = schedule.warm_up(options);
  check_warm_up(options);
  if (options.memory_units > 0) {
    options.warm = limited_warm_up(options.warm, options.replicas, options.memory_units);
  }
  if (description.rule == UpdateRule::kDoubleBuffer) choose_micro_batches_per_update(options);
  return options;
}

Program without_lists(const ScheduleOptions& options, const ScheduleDescription& schedule) {
  Program program;
  program.schedule = schedule.name;
  program.rule = schedule.rule;
  program.stages = options.stages;
  program.micro_batches = options.micro_batches;
  program.gradient_sync = options.gradient_sync;
  if (program.rule == UpdateRule::kDoubleBuffer) {
    program.micro_batches_per_update = options.micro_batches_per_update;
  }
  program.recompute = options.recompute;
  program.edges = chain_edges(options.stages);
  if (program.rule == UpdateRule::kNone) {
    // Evaluation keeps no activations and recomputes nothing.
    program.recompute.assign(program.recompute.size(), false);
    std::erase_if(program.edges, [](const Edge& edge) { return edge.gradient; });
  }
  const int per_device = stages_per_device(schedule.placement, options.chunks);
  program.devices = schedule.placement == Placement::kChain
                        ? std::accumulate(options.replicas.begin(), options.replicas.end(), 0)
                        : options.stages / per_device;
  program.placement =
      place_stages(schedule.placement, options.stages / per_device, options.replicas);
  return program;
}

/// Gives each replica of a chain's stages the place of replica_at().
void place_as_tree(Program& program) {
  const Program before = program;
  for (std::size_t s = 0; s < program.placement.size(); ++s) {
    const std::vector<int>& devices = before.placement[s];
    PT_CHECK(std::has_single_bit(devices.size()), kUsage,
             "{} needs 1, 2, 4 or another power of two of replicas, but stage {} has {}; give {}",
             setting("accumulators"), s, devices.size(), setting("replicas"));
    for (std::size_t place = 0; place < devices.size(); ++place) {
      const auto replica = static_cast<std::size_t>(
          replica_at(static_cast<int>(place), static_cast<int>(devices.size()), /*in_tree=*/true));
      program.placement[s][replica] = devices[place];
      program.device[static_cast<std::size_t>(devices[place])] =
          before.device[static_cast<std::size_t>(devices[replica])];
    }
  }
}

}  // namespace

const std::vector<ScheduleDescription>& schedules() {
  static const std::vector<ScheduleDescription> descriptions = [] {
    std::vector<ScheduleDescription> all;
    for (const Schedule& schedule : schedule::table()) all.push_back(schedule.description);
    return all;
  }();
  return descriptions;
}

const ScheduleDescription& describe_schedule(const std::string& name) {
  return schedule::find(name).description;
}

const ScheduleDescription* find_schedule(const std::string& name) {
  const Schedule* schedule = schedule::lookup(name);
  return schedule == nullptr ? nullptr : &schedule->description;
}

PlannedSchedule planned_schedule(const std::string& name) {
  const ScheduleDescription* schedule = find_schedule(name);
  if (schedule == nullptr) return {.name = name, .memory = std::nullopt, .is_file = true};
  return {.name = name,
          .memory = schedule->memory,
          .whole_mini_batches = sends_whole_mini_batches(schedule->rule)};
}

int stages_per_device(const std::string& name, int chunks) {
  return stages_per_device(describe_schedule(name).placement, chunks);
}

int replica_at(int place, int replicas, bool in_tree) {
  if (!in_tree) return place;
  int replica = 0;  // the bits of the place in reverse
  for (int bit = 1; bit < replicas; bit *= 2) replica = 2 * replica + (place / bit) % 2;
  return replica;
}

std::vector<std::vector<int>> place_stages(Placement placement, int devices,
                                           const std::vector<int>& replicas) {
  const auto stages = static_cast<int>(replicas.size());
  std::vector<std::vector<int>> placed;
  int next = 0;
  for (int s = 0; s < stages; ++s) {
    auto& of_stage = placed.emplace_back();
    if (placement == Placement::kLoop) of_stage.push_back(s % devices);
    if (placement == Placement::kV) of_stage.push_back(s < devices ? s : stages - 1 - s);
    if (placement != Placement::kChain) continue;
    for (int r = 0; r < replicas[static_cast<std::size_t>(s)]; ++r) of_stage.push_back(next++);
  }
  return placed;
}

Program generate(const ScheduleOptions& given) {
  const Schedule& schedule = schedule::find(given.name);
  const ScheduleOptions options = resolved(given, schedule);
  Program program = without_lists(options, schedule.description);
  program.device = schedule.lists(options);
  if (options.sums_as_tree) place_as_tree(program);
  complete(program);
  return program;
}

Program forward_program(const Program& training, int micro_batches) {
  Program program;
  program.schedule = "forward";
  program.rule = UpdateRule::kNone;
  program.stages = training.stages;
  program.devices = training.devices;
  program.micro_batches = micro_batches;
  program.placement = training.placement;
  program.recompute.assign(training.recompute.size(), false);
  program.edges = chain_edges(training.stages);
  std::erase_if(program.edges, [](const Edge& edge) { return edge.gradient; });
  program.device = schedule::forward_groups(program);
  complete(program);
  return program;
}

}  // namespace pipetrain
