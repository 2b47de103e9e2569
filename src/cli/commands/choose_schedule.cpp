// --schedule auto, and plan without a schedule: the best configuration in simulation.
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands/commands.h"
#include "partition/topology_file.h"
#include "train/auto_schedule.h"

namespace pipetrain {
namespace {

std::string candidates_table(const FoundSchedules& found, std::size_t most) {
  std::string out =
      fmt::format("{:<20}{:>8}{:>9}{:>7}{:>11}{:>12}{:>12}{:>9}{:>12}\n", "schedule", "devices",
                  "replicas", "micro", "recompute", "step", "samples/s", "bubble", "memory");
  const auto row = [&](const Candidate& candidate, bool chosen) {
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
    if (++rows <= most || chosen) out += row(found.candidates[i], chosen);
  }
  return out +
         fmt::format(
             "{} of {} simulated configurations are Pareto-optimal in time and memory · {:.1f} s\n",
             rows, found.candidates.size(), found.seconds);
}

}  // namespace

void choose_schedule(Options& options, const SearchScope& scope, bool print_table) {
  PT_CHECK(options.run.pipeline.replicas.empty() && !options.run.pipeline.plan_replicas, kUsage,
           "--schedule auto chooses replicas itself; leave out --replicas, or name a schedule");
  const PipelineConfig& given = options.run.pipeline;
  PT_CHECK(given.split.empty() && given.cuts.empty() && given.plan_path.empty(), kUsage,
           "--schedule auto cuts the model itself; leave out {}, or name a schedule",
           given.plan_path.empty() ? "--split" : "--plan");
  const FoundSchedules found = find_schedules(options.run, scope);
  if (print_table) std::fputs(candidates_table(found, 20).c_str(), stdout);
  if (found.chosen < 0) {
    const auto least = std::min_element(
        found.candidates.begin(), found.candidates.end(),
        [](const Candidate& a, const Candidate& b) { return a.peak_bytes < b.peak_bytes; });
    PT_CHECK(least != found.candidates.end(), kResource,
             "no schedule suits {} devices and this batch; use fewer --gpus or a larger "
             "--batch-size",
             options.run.pipeline.devices);
    PT_FAIL(kResource,
            "no configuration fits into {} per device; {} with {} micro-batches on {} devices{} "
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
  log_info("plan", "chose    {}: {} micro-batches on {} devices, {}/step",
           options.run.pipeline.schedule, chosen.micro_batches, options.run.pipeline.devices,
           seconds_text(chosen.step_seconds));
}

}  // namespace pipetrain
