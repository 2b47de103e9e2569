#include "partition/plan_build.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace pipetrain {
namespace {

// The slower of two neighbours if the cut between them were elsewhere; negative: it does not fit.
double slower_with_cut(const StageCostModel& model, const StageDecision& left,
                       const StagePlace& left_place, const StageDecision& right,
                       const StagePlace& right_place, int cut) {
  double out = 0;
  for (const bool is_left : {true, false}) {
    const int first = is_left ? left.first : cut;
    const int last = is_left ? cut : right.last;
    const StagePlace& place = is_left ? left_place : right_place;
    const RangeCost range = model.ranges().range(first, last);
    bool recompute = is_left ? left.recompute : right.recompute;
    if (!model.pricing().fits(model.memory(range, first, place, recompute))) {
      if (model.request().recompute != Recompute::kAuto) return -1;
      recompute = !recompute;
      if (!model.pricing().fits(model.memory(range, first, place, recompute))) return -1;
    }
    out = std::max(out, model.seconds(range, first, last, place, recompute));
  }
  return out;
}

std::string elsewhere(const char* where, double seconds) {
  return seconds < 0 ? fmt::format("one node {}, a stage would not fit in memory", where)
                     : fmt::format("one node {}, the slower stage would take {}", where,
                                   seconds_text(seconds));
}

std::string cut_reason(const StageCostModel& model, std::span<const StageDecision> stages,
                       const Plan& plan, std::size_t right) {
  const StageDecision &before = stages[right - 1], &after = stages[right];
  const StagePlace left_place = place_of(model, stages, right - 1);
  const StagePlace right_place = place_of(model, stages, right);
  const auto cut = static_cast<std::size_t>(after.first);
  const std::vector<TopologyLevel>& levels = model.request().topology.levels;
  const std::string link =
      levels.empty()
          ? ""
          : fmt::format(" over {}",
                        printable(levels[static_cast<std::size_t>(right_place.level_before)].name));
  std::string out = fmt::format(
      "before {}: transfers {} forward and {} backward{}; stages {} before and {} after the cut",
      printable(model.chain().elements[cut].name), bytes_text(model.chain().forward_bytes[cut]),
      bytes_text(model.chain().backward_bytes[cut]), link,
      seconds_text(plan.stages[right - 1].seconds), seconds_text(plan.stages[right].seconds));
  if (after.first - 1 > before.first) {
    out += "; " + elsewhere("earlier", slower_with_cut(model, before, left_place, after,
                                                       right_place, after.first - 1));
  }
  if (after.first + 1 < after.last) {
    out += "; " + elsewhere("later", slower_with_cut(model, before, left_place, after, right_place,
                                                     after.first + 1));
  }
  return out;
}

double step_share(const StageCostModel& model, double step) {
  return step / model.request().micro_batches;
}

double element_seconds(const StageCostModel& model, int at) {
  const bool twice = model.request().recompute == Recompute::kAll;
  return model.pricing().compute_seconds(model.ranges().range(at, at + 1), twice) /
         model.pricing().highest_speed();
}

}  // namespace

StagePlace place_of(const StageCostModel& model, std::span<const StageDecision> stages,
                    std::size_t index) {
  const DeviceRange& devices = stages[index].devices;
  StagePlace out;
  out.devices = devices;
  for (std::size_t later = index + 1; later < stages.size(); ++later) {
    out.after += stages[later].devices.count;
  }
  // Every replica sends to every one of the neighbour's: the farthest two are what counts.
  if (index > 0) {
    const DeviceRange& before = stages[index - 1].devices;
    out.level_before =
        model.pricing().level_between(before.first, devices.first + devices.count - 1);
  }
  if (index + 1 < stages.size()) {
    const DeviceRange& after = stages[index + 1].devices;
    out.level_after = model.pricing().level_between(devices.first, after.first + after.count - 1);
  }
  return out;
}

Plan build_plan(const StageCostModel& model, std::span<const StageDecision> stages) {
  const int count = model.request().micro_batches;
  Plan plan;
  double latency = 0, wait = 0;
  for (std::size_t at = 0; at < stages.size(); ++at) {
    const StageDecision& choice = stages[at];
    const StagePlan& stage = plan.stages.emplace_back(
        model.stage(choice.first, choice.last, place_of(model, stages, at), choice.recompute));
    plan.bottleneck_seconds = std::max(plan.bottleneck_seconds, stage.seconds);
    const double one = stage.forward_seconds * (stage.recompute ? 2 : 1) + stage.backward_seconds +
                       stage.transfer_seconds;
    latency += one;
    wait = std::max(wait, stage.seconds * count - one);
  }
  plan.mini_batch_seconds =
      model.pricing().rule().asynchronous() ? count * plan.bottleneck_seconds : latency + wait;
  for (std::size_t at = 1; at < stages.size(); ++at) {
    plan.cut_reasons.push_back(cut_reason(model, stages, plan, at));
  }
  return plan;
}

void add_recompute_note(const PlanRequest& request, Plan& plan) {
  if (request.recompute != Recompute::kAuto) return;
  std::string stages;
  int count = 0;
  for (std::size_t first = 0; first < plan.stages.size(); ++first) {
    if (!plan.stages[first].recompute) continue;
    std::size_t last = first;
    while (last + 1 < plan.stages.size() && plan.stages[last + 1].recompute) ++last;
    stages += fmt::format("{}{}", count > 0 ? ", " : "", first);
    if (last > first) stages += fmt::format("-{}", last);
    count += static_cast<int>(last - first) + 1;
    first = last;
  }
  if (count == 0) return;
  plan.notes.push_back(fmt::format("stage{} {} run{} the forward pass twice to fit into {}",
                                   count > 1 ? "s" : "", stages, count > 1 ? "" : "s",
                                   bytes_text(request.memory_limit_bytes)));
}

// Two bounds hold for every cut: work spread evenly (each cut costs both its neighbours), and the
// largest element.
LowerBound lower_bound_of_stages(const StageCostModel& model, int stages) {
  const bool twice = model.request().recompute == Recompute::kAll;
  const StagePricing& pricing = model.pricing();
  const RangeCost all = model.ranges().range(0, model.count());
  std::vector<double> cuts;
  for (int cut = 1; cut < model.count(); ++cut) {
    double least = model.cut_seconds(0, cut);
    for (int level = 1; level < pricing.levels(); ++level) {
      least = std::min(least, model.cut_seconds(level, cut));
    }
    cuts.push_back(least);
  }
  std::sort(cuts.begin(), cuts.end());
  const double transfers = 2 * std::accumulate(cuts.begin(), cuts.begin() + (stages - 1), 0.0);
  double speeds = 0;
  for (int device = 0; device < stages; ++device) speeds += pricing.speed(device, 1);
  const double work = pricing.compute_seconds(all, twice) + step_share(model, all.step_seconds);
  LowerBound out;
  // Transfers do not depend on the speed of a device: they are spread over `stages` full ones at
  // best.
  out.seconds = (work + transfers * std::min(1.0, speeds / stages)) / speeds;
  if (pricing.uniform()) out.seconds = (work + transfers) / stages;
  out.reason = stages == 1 ? "one stage does all the work"
                           : fmt::format("the work spread evenly over {} stages", stages);
  for (int at = 0; at < model.count(); ++at) {
    const double seconds =
        element_seconds(model, at) +
        step_share(model, model.ranges().range(at, at + 1).step_seconds) / pricing.highest_speed();
    if (seconds <= out.seconds) continue;
    out.seconds = seconds;
    out.reason = fmt::format("the largest node, {}, cannot be divided",
                             printable(model.chain().elements[static_cast<std::size_t>(at)].name));
  }
  return out;
}

LowerBound lower_bound_of_devices(const StageCostModel& model) {
  const bool twice = model.request().recompute == Recompute::kAll;
  const StagePricing& pricing = model.pricing();
  const RangeCost all = model.ranges().range(0, model.count());
  const double work = pricing.compute_seconds(all, twice) + step_share(model, all.step_seconds);
  const int devices = pricing.devices();
  double speeds = 0;
  for (int device = 0; device < devices; ++device) speeds += pricing.speed(device, 1);
  LowerBound out;
  out.seconds = work / speeds;
  out.reason = devices == 1 ? "one device does all the work"
                            : fmt::format("the work spread evenly over {} devices", devices);
  const double fastest = pricing.highest_speed();
  const double compute = pricing.compute_seconds(all, twice) / fastest;
  for (int at = 0; at < model.count(); ++at) {
    const double alone = element_seconds(model, at);
    if (alone <= out.seconds) continue;
    const RangeCost range = model.ranges().range(at, at + 1);
    const double step = range.step_seconds / pricing.highest_speed();
    // Not what it shares with earlier elements, which may be in its stage.
    const std::size_t parameter_bytes =
        model.chain().elements[static_cast<std::size_t>(at)].parameter_bytes;
    // Time that its replicas spend on all-reduces and uneven shares is lost to all others.
    double least = std::numeric_limits<double>::infinity();
    const int most = model.request().replication ? devices : 1;
    for (int replicas = 1; replicas <= most && least > out.seconds; ++replicas) {
      const double sum =
          pricing.all_reduce_seconds(parameter_bytes, std::min(replicas, pricing.group_size(0)));
      const double now = pricing.seconds(alone, step, sum, replicas);
      if (now >= least) continue;
      const double everything = (compute + replicas * now - alone) * fastest / speeds;
      least = std::min(least, std::max(now, everything));
    }
    if (least <= out.seconds) continue;
    out.seconds = least;
    out.reason =
        fmt::format("the largest node, {}, cannot be divided{}",
                    printable(model.chain().elements[static_cast<std::size_t>(at)].name),
                    most > 1 ? " except into replicas, which take its micro-batches in turns" : "");
  }
  return out;
}

}  // namespace pipetrain
