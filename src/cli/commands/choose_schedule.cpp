// --schedule auto, and plan without a schedule: the best configuration in simulation.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands/commands.h"
#include "partition/topology_file.h"
#include "train/auto_schedule.h"
#include "train/planned_network.h"

namespace pipetrain {
namespace {

/// Gives a candidate the figures of its detailed plan.
void put_planned(const PlannedNetwork& network, Candidate& candidate) {
  candidate.step_seconds = network.predicted_step_seconds();
  candidate.bubble = network.predicted_bubble();
  candidate.samples_per_second =
      static_cast<double>(network.config().optimization.batch_size) / candidate.step_seconds;
  candidate.peak_bytes = network.most_device_bytes();
}

/// Error (kResource): nothing that was found fits into memory.
[[noreturn]] void fail_without_room(const std::vector<Candidate>& candidates,
                                    const PipelineConfig& pipeline) {
  const auto least = std::min_element(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.peak_bytes < b.peak_bytes; });
  PT_CHECK(least != candidates.end(), kResource,
           "no schedule works with {} devices and this batch size; use fewer --gpus or a larger "
           "--batch-size",
           pipeline.devices);
  PT_FAIL(
      kResource,
      "no configuration fits in {} per device; {} with {} micro-batches on {} devices{} "
      "needs the least: {}",
      bytes_text(pipeline.memory_limit_bytes > 0 ? pipeline.memory_limit_bytes
                                                 : named_topology(pipeline.topology).memory_bytes),
      least->schedule, least->micro_batches, least->places * least->replicas,
      least->recompute ? " with recompute" : "", bytes_text(least->peak_bytes));
}

/// Whether the chosen configuration, set in `config`, fits into memory as laid out. The search adds
/// up tensor sizes.
std::optional<Error> without_room(const RunConfig& config, const SearchScope& scope) {
  if (config.pipeline.memory_limit_bytes == 0 && config.pipeline.topology.empty()) return {};
  try {
    static_cast<void>(
        plan_network(config, RunMode::kTrain, /*processes=*/nullptr, scope.same_data));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return error;
  }
  return {};
}

}  // namespace

std::string candidates_table(const FoundSchedules& found, const PlannedNetwork& network,
                             int devices) {
  constexpr std::size_t kMost = 20;
  std::string out =
      fmt::format("{:<20}{:>8}{:>9}{:>7}{:>11}{:>12}{:>12}{:>9}{:>12}\n", "schedule", "devices",
                  "replicas", "micro", "recompute", "step", "samples/s", "bubble", "memory");
  const auto row = [&](Candidate candidate, bool chosen) {
    if (chosen) put_planned(network, candidate);
    return fmt::format(
        "{:<20}{:>8}{:>9}{:>7}{:>11}{:>12}{:>12.5g}{:>8.1f}%{:>12}{}{}\n", candidate.schedule,
        candidate.places * candidate.replicas, candidate.replicas, candidate.micro_batches,
        candidate.recompute ? "yes" : "no", seconds_text(candidate.step_seconds),
        candidate.samples_per_second, candidate.bubble * 100, bytes_text(candidate.peak_bytes),
        candidate.fits ? "" : "  does not fit", chosen ? "  <- chosen" : "");
  };
  std::size_t rows = 0;
  for (std::size_t i = 0; i < found.candidates.size(); ++i) {
    const bool chosen = static_cast<int>(i) == found.chosen;
    if (!found.candidates[i].pareto && !chosen) continue;
    if (++rows <= kMost || chosen) out += row(found.candidates[i], chosen);
  }
  return out + fmt::format(
                   "{} of {} simulated configurations are Pareto-optimal in time and memory · "
                   "{:.1f} s\nsearched: schedules, micro-batches, recompute, replicas, and up to "
                   "{} devices; --schedule NAME plans {} stages of one device each\n",
                   rows, found.candidates.size(), found.seconds, devices, devices);
}

FoundSchedules choose_schedule(Options& options, const SearchScope& scope) {
  PT_CHECK(options.run.pipeline.replicas.empty() && !options.run.pipeline.plan_replicas, kUsage,
           "--schedule auto chooses replicas itself; leave out --replicas, or name a schedule");
  const PipelineConfig& given = options.run.pipeline;
  PT_CHECK(given.split.empty() && given.cuts.empty(), kUsage,
           "--schedule auto cuts the model itself; leave out --split, or name a schedule");
  constexpr int kMostDevices = 4096;
  PT_CHECK(given.devices <= kMostDevices, kUsage, "--gpus must be at most {}, not {}", kMostDevices,
           given.devices);
  const RunConfig open = options.run;
  FoundSchedules found = find_schedules(open, scope);
  std::optional<Error> first;  // of the fastest that has no room
  while (found.chosen >= 0) {
    Candidate& chosen = found.candidates[static_cast<std::size_t>(found.chosen)];
    options.run = open;
    take_over(chosen, options.run);
    options.run.pipeline.order = found.order;
    const std::optional<Error> failed = without_room(options.run, scope);
    if (!failed) return found;
    if (!first) first = failed;
    chosen.fits = false;
    found.chosen = choose(found.candidates);
  }
  if (first) throw Error(*first);
  fail_without_room(found.candidates, open.pipeline);
}

void log_choice(const Options& options, std::int64_t micro_batches, double step_seconds) {
  const PipelineConfig& pipeline = options.run.pipeline;
  log_info("plan", "chose    {}: {} micro-batches on {} devices, {}/step", pipeline.schedule,
           micro_batches, pipeline.devices, seconds_text(step_seconds));
}

void log_choice(const Options& options, const FoundSchedules& found) {
  const Candidate& chosen = found.candidates[static_cast<std::size_t>(found.chosen)];
  log_choice(options, chosen.micro_batches, chosen.step_seconds);
}

}  // namespace pipetrain
