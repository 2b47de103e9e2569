// From costs to a plan of single devices: the exact cut, its numbers, a lower bound, reasons.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "partition/chain_cut.h"
#include "partition/does_not_fit.h"
#include "partition/plan.h"
#include "partition/plan_build.h"
#include "partition/stage_cost.h"

namespace pipetrain {
namespace {

void check_cuts(const StageCostModel& model, std::span<const int> cuts) {
  int previous = 0;
  for (const int cut : cuts) {
    PT_CHECK(cut > 0 && cut < model.count(), kUsage,
             "a stage would begin at node {}, but cuts lie between 1 and {}", cut,
             model.count() - 1);
    PT_CHECK(cut > previous, kUsage,
             "the cuts at nodes {} and {} are not in ascending order; a stage needs one node at "
             "least",
             previous, cut);
    previous = cut;
  }
}

void check_devices(std::span<const DeviceRange> devices) {
  int end = 0;
  for (std::size_t at = 0; at < devices.size(); ++at) {
    PT_CHECK(devices[at].count >= 1, kUsage, "stage {} has {} replicas; it needs one at least", at,
             devices[at].count);
    PT_CHECK(devices[at].first >= end, kUsage,
             "stage {} begins on device {}, but the stages before it take devices up to {}", at,
             devices[at].first, end - 1);
    end = devices[at].first + devices[at].count;
  }
}

Plan build(const StageCostModel& model, std::span<const int> cuts,
           std::span<const Recompute> recompute, std::span<const DeviceRange> devices) {
  const std::size_t stages = cuts.size() + 1;
  PT_CHECK(recompute.empty() || recompute.size() == stages, kUsage,
           "{} recompute choices were given for {} stages", recompute.size(), stages);
  std::vector<StageDecision> decisions;
  for (std::size_t at = 0; at < stages; ++at) {
    StageDecision stage;
    stage.first = at == 0 ? 0 : cuts[at - 1];
    stage.last = at + 1 == stages ? model.count() : cuts[at];
    stage.devices = devices.empty() ? DeviceRange{static_cast<int>(at), 1} : devices[at];
    decisions.push_back(stage);
  }
  for (std::size_t at = 0; at < stages; ++at) {
    StageDecision& stage = decisions[at];
    const StagePlace place = place_of(model, decisions, at);
    const RangeCost range = model.ranges().range(stage.first, stage.last);
    const Recompute mode = recompute.empty() ? model.request().recompute : recompute[at];
    const std::optional<bool> again = decide_recompute(model, range, stage.first, place, mode);
    if (!again) {
      fail_for_memory(model, static_cast<int>(stages), static_cast<int>(at),
                      model.stage(stage.first, stage.last, place, mode != Recompute::kNone));
    }
    stage.recompute = *again;
  }
  return build_plan(model, decisions);
}

}  // namespace

double Plan::gap() const {
  return lower_bound_seconds > 0 ? bottleneck_seconds / lower_bound_seconds - 1 : 0;
}

std::vector<int> Plan::cuts() const {
  std::vector<int> out;
  for (std::size_t at = 1; at < stages.size(); ++at) out.push_back(stages[at].first);
  return out;
}

int Plan::devices() const {
  int out = 0;
  for (const StagePlan& stage : stages) out += stage.replicas;
  return out;
}

Plan plan_stages(const ChainCosts& chain, const PlanRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  PT_CHECK(request.stages >= 1, kUsage, "a plan needs one stage at least, got {}", request.stages);
  const int nodes = static_cast<int>(chain.elements.size());
  int stages = std::min(request.stages, std::max(1, nodes));
  if (stages < request.stages && stages >= request.stages_per_device)
    stages -= stages % request.stages_per_device;
  const StageCostModel model(chain, request, stages);
  const LowerBound bound = lower_bound_of_stages(model, stages);
  const std::optional<std::vector<int>> cuts = best_cuts(model, stages, bound.seconds);
  if (!cuts) fail_for_memory(model, stages);
  Plan plan = build(model, *cuts, {}, {});
  plan.lower_bound_seconds = bound.seconds;
  plan.lower_bound_reason = bound.reason;
  if (stages < request.stages) {
    plan.notes.push_back(fmt::format(
        "{} stages were asked for, but the model has only {} node{} to put into stages: {} {} "
        "used",
        request.stages, nodes, nodes == 1 ? "" : "s", stages, stages == 1 ? "is" : "are"));
  }
  add_recompute_note(request, plan);
  plan.planning_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

Plan plan_with_cuts(const ChainCosts& chain, const PlanRequest& request, std::span<const int> cuts,
                    std::span<const Recompute> recompute, std::span<const DeviceRange> devices) {
  const std::size_t stages = cuts.size() + 1;
  PT_CHECK(devices.empty() || devices.size() == stages, kUsage,
           "the devices of {} stages were given for {} stages", devices.size(), stages);
  check_devices(devices);
  const int last_device =
      devices.empty() ? static_cast<int>(stages) : devices.back().first + devices.back().count;
  const StageCostModel model(chain, request, last_device);
  check_cuts(model, cuts);
  Plan plan = build(model, cuts, recompute, devices);
  const bool single = plan.devices() == static_cast<int>(stages);
  const LowerBound bound = single ? lower_bound_of_stages(model, static_cast<int>(stages))
                                  : lower_bound_of_devices(model);
  plan.lower_bound_seconds = bound.seconds;
  plan.lower_bound_reason = bound.reason;
  return plan;
}

void take_stages(Plan from, Plan& to) {
  to.stages = std::move(from.stages);
  to.cut_reasons = std::move(from.cut_reasons);
  to.bottleneck_seconds = from.bottleneck_seconds;
  to.mini_batch_seconds = from.mini_batch_seconds;
}

Plan with_recompute(const ChainCosts& chain, const PlanRequest& request, Plan plan,
                    const std::vector<bool>& wanted) {
  std::vector<DeviceRange> devices;
  std::vector<Recompute> recompute;
  bool changes = false;
  for (const StagePlan& stage : plan.stages) {
    const bool more = recompute.size() < wanted.size() && wanted[recompute.size()];
    changes = changes || (more && !stage.recompute);
    devices.push_back({stage.first_device, stage.replicas});
    recompute.push_back(more || stage.recompute ? Recompute::kAll : Recompute::kNone);
  }
  if (changes) take_stages(plan_with_cuts(chain, request, plan.cuts(), recompute, devices), plan);
  return plan;
}

Plan without_gaps(const ChainCosts& chain, const PlanRequest& request, Plan plan) {
  std::vector<DeviceRange> devices;
  std::vector<Recompute> recompute;
  bool has_gaps = false;
  for (const StagePlan& stage : plan.stages) {
    const int free = devices.empty() ? 0 : devices.back().first + devices.back().count;
    has_gaps = has_gaps || stage.first_device != free;
    devices.push_back({free, stage.replicas});
    recompute.push_back(stage.recompute ? Recompute::kAll : Recompute::kNone);
  }
  if (has_gaps) take_stages(plan_with_cuts(chain, request, plan.cuts(), recompute, devices), plan);
  return plan;
}

}  // namespace pipetrain
