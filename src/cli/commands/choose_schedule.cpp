// --schedule auto, and plan without a schedule: the best configuration in simulation.
#include <algorithm>
#include <cstdio>

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
      static_cast<double>(network.micro_batch() * network.micro_batches()) / candidate.step_seconds;
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
  const FoundSchedules found = find_schedules(options.run, scope);
  if (found.chosen < 0) {
    const auto least = std::min_element(
        found.candidates.begin(), found.candidates.end(),
        [](const Candidate& a, const Candidate& b) { return a.peak_bytes < b.peak_bytes; });
    PT_CHECK(least != found.candidates.end(), kResource,
             "no schedule works with {} devices and this batch size; use fewer --gpus or a larger "
             "--batch-size",
             options.run.pipeline.devices);
    PT_FAIL(kResource,
            "no configuration fits in {} per device; {} with {} micro-batches on {} devices{} "
            "needs the least: {}",
            bytes_text(options.run.pipeline.memory_limit_bytes > 0
                           ? options.run.pipeline.memory_limit_bytes
                           : named_topology(options.run.pipeline.topology).memory_bytes),
            least->schedule, least->micro_batches, least->places * least->replicas,
            least->recompute ? " with recompute" : "", bytes_text(least->peak_bytes));
  }
  const Candidate& chosen = found.candidates[static_cast<std::size_t>(found.chosen)];
  take_over(chosen, options.run);
  options.run.pipeline.order = found.order;
  return found;
}

void log_choice(const Options& options, double step_seconds) {
  const PipelineConfig& pipeline = options.run.pipeline;
  log_info("plan", "chose    {}: {} micro-batches on {} devices, {}/step", pipeline.schedule,
           pipeline.micro_batches, pipeline.devices, seconds_text(step_seconds));
}

}  // namespace pipetrain
