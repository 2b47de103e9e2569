// From costs to a plan: the exact cut, its numbers, a lower bound, and reasons in words.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "partition/chain_cut.h"
#include "partition/does_not_fit.h"
#include "partition/plan.h"
#include "partition/stage_cost.h"

namespace pipetrain {
namespace {

struct Bound {
  double seconds = 0;
  std::string reason;
};

// Two bounds hold for every cut: work spread evenly (each cut costs both its neighbours), and the
// largest element.
Bound lower_bound(const StageCostModel& model, int stages) {
  const bool twice = model.request().recompute == Recompute::kAll;
  const RangeCost all = model.ranges_from(0).back();
  std::vector<double> cuts;
  for (int cut = 1; cut < model.count(); ++cut) cuts.push_back(model.cut_seconds(cut));
  std::sort(cuts.begin(), cuts.end());
  const double transfers = 2 * std::accumulate(cuts.begin(), cuts.begin() + (stages - 1), 0.0);
  Bound out;
  out.seconds = (model.compute_seconds(all, twice) + transfers) / stages;
  out.reason = stages == 1 ? "one stage does all the work"
                           : fmt::format("the work spread evenly over {} stages", stages);
  for (int at = 0; at < model.count(); ++at) {
    const ChainCost& element = model.chain().elements[static_cast<std::size_t>(at)];
    RangeCost alone;
    alone.forward_seconds = element.forward_seconds;
    alone.input_gradient_seconds = element.input_gradient_seconds;
    alone.weight_gradient_seconds = element.weight_gradient_seconds;
    alone.step_seconds = element.step_seconds;
    const double seconds = model.compute_seconds(alone, twice);
    if (seconds <= out.seconds) continue;
    out.seconds = seconds;
    out.reason = fmt::format("the largest node, {}, cannot be divided", printable(element.name));
  }
  return out;
}

std::string cut_reason(const StageCostModel& model, const StagePlan& before,
                       const StagePlan& after) {
  const auto cut = static_cast<std::size_t>(after.first);
  return fmt::format("before {}: {} forward and {} back cross it; {} on the left, {} on the right",
                     printable(model.chain().elements[cut].name),
                     bytes_text(model.chain().forward_bytes[cut]),
                     bytes_text(model.chain().backward_bytes[cut]), seconds_text(before.seconds),
                     seconds_text(after.seconds));
}

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

Plan build(const StageCostModel& model, std::span<const int> cuts,
           std::span<const Recompute> recompute) {
  const int stages = static_cast<int>(cuts.size()) + 1;
  PT_CHECK(recompute.empty() || recompute.size() == cuts.size() + 1, kUsage,
           "{} recompute choices were given for {} stages", recompute.size(), stages);
  Plan plan;
  for (int at = 0; at < stages; ++at) {
    const auto index = static_cast<std::size_t>(at);
    const int first = at == 0 ? 0 : cuts[index - 1];
    const int last = at + 1 == stages ? model.count() : cuts[index];
    const RangeCost range = model.ranges_from(first)[static_cast<std::size_t>(last - first - 1)];
    const ScheduleLoad load =
        schedule_load(model.request().schedule, at, stages, model.request().micro_batches);
    const Recompute mode = recompute.empty() ? model.request().recompute : recompute[index];
    const std::optional<bool> again = decide_recompute(model, range, first, load, mode);
    if (!again) {
      fail_for_memory(model, stages, at,
                      model.stage(range, first, last, load, mode != Recompute::kNone));
    }
    plan.stages.push_back(model.stage(range, first, last, load, *again));
    plan.bottleneck_seconds = std::max(plan.bottleneck_seconds, plan.stages.back().seconds);
  }
  const Bound bound = lower_bound(model, stages);
  plan.lower_bound_seconds = bound.seconds;
  plan.lower_bound_reason = bound.reason;
  for (std::size_t at = 1; at < plan.stages.size(); ++at) {
    plan.cut_reasons.push_back(cut_reason(model, plan.stages[at - 1], plan.stages[at]));
  }
  return plan;
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

Plan plan_stages(const ChainCosts& chain, const PlanRequest& request) {
  PT_CHECK(request.stages >= 1, kUsage, "a plan needs one stage at least, got {}", request.stages);
  const StageCostModel model(chain, request);
  const int stages = std::min(request.stages, model.count());
  const std::optional<std::vector<int>> cuts = best_cuts(model, stages);
  if (!cuts) fail_for_memory(model, stages);
  Plan plan = build(model, *cuts, {});
  if (stages < request.stages) {
    plan.notes.push_back(fmt::format(
        "{} stages were asked for, but the model has only {} node{} to put into stages: {} {} "
        "used",
        request.stages, stages, stages == 1 ? "" : "s", stages, stages == 1 ? "is" : "are"));
  }
  for (std::size_t at = 0; at < plan.stages.size(); ++at) {
    if (request.recompute != Recompute::kAuto || !plan.stages[at].recompute) continue;
    plan.notes.push_back(fmt::format("stage {} runs its forward twice to fit into {}", at,
                                     bytes_text(request.memory_limit_bytes)));
  }
  return plan;
}

Plan plan_with_cuts(const ChainCosts& chain, const PlanRequest& request, std::span<const int> cuts,
                    std::span<const Recompute> recompute) {
  const StageCostModel model(chain, request);
  check_cuts(model, cuts);
  return build(model, cuts, recompute);
}

}  // namespace pipetrain
