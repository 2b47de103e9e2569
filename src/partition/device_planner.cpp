// The general planner: any number of stages, replicated, on the available devices.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "partition/does_not_fit.h"
#include "partition/optimum.h"
#include "partition/plan.h"
#include "partition/plan_build.h"

namespace pipetrain {
namespace {

bool wants_mini_batch(const StageCostModel& model) {
  const Objective objective = model.request().objective;
  if (objective != Objective::kAuto) return objective == Objective::kMiniBatch;
  return !model.pricing().rule().asynchronous();
}

std::string names_of(const ChainCosts& chain, const StagePlan& stage) {
  const std::string first = printable(chain.elements[static_cast<std::size_t>(stage.first)].name);
  if (stage.last == stage.first + 1) return first;
  return first + " to " + printable(chain.elements[static_cast<std::size_t>(stage.last - 1)].name);
}

// Explains why the unused devices do not make the slowest stage faster.
std::string idle_reason(const StageCostModel& model, const Plan& plan, bool mini_batch) {
  const auto slowest = std::max_element(
      plan.stages.begin(), plan.stages.end(),
      [](const StagePlan& a, const StagePlan& b) { return a.seconds < b.seconds; });
  const std::string stage = fmt::format("stage {} ({})", slowest - plan.stages.begin(),
                                        names_of(model.chain(), *slowest));
  const int count = model.request().micro_batches;
  if (!model.request().replication) {
    return slowest->last == slowest->first + 1
               ? fmt::format("{} cannot be divided further and replication is off", stage)
               : "another stage would cost more in transfers than it saves";
  }
  const bool asynchronous = model.pricing().rule().asynchronous();
  if (!asynchronous && slowest->replicas >= count) {
    return fmt::format("{1} already has a replica for each of the {0} micro-batches", count, stage);
  }
  if (mini_batch) {
    return "more stages or replicas would cost more in filling the pipeline, transfers and sums of "
           "gradients than they save";
  }
  if (!asynchronous) {
    return fmt::format("the {} micro-batches cannot be distributed better over the unused devices",
                       count);
  }
  return "more replicas or stages would cost more in transfers and sums of gradients than they "
         "save";
}

void add_notes(const StageCostModel& model, Plan& plan, bool mini_batch) {
  const int devices = model.pricing().devices(), used = plan.devices();
  if (used < devices) {
    plan.notes.push_back(fmt::format("{} of {} devices are used: {}", used, devices,
                                     idle_reason(model, plan, mini_batch)));
  }
  add_recompute_note(model.request(), plan);
}

int devices_of(const PlanRequest& request) {
  if (request.devices > 0) return request.devices;
  PT_CHECK(request.devices == 0, kUsage, "a plan needs one device at least, got {}",
           request.devices);
  if (!request.topology.levels.empty()) return request.topology.devices();
  return std::max(1, request.stages);
}

std::vector<StageDecision> decisions_of(const std::vector<StageChoice>& stages) {
  std::vector<StageDecision> out;
  for (const StageChoice& stage : stages) {
    out.push_back({stage.first, stage.last, stage.devices, stage.recompute});
  }
  return out;
}

}  // namespace

Plan plan_devices(const ChainCosts& chain, const PlanRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  PT_CHECK(request.stages >= 0, kUsage, "a plan needs one stage at least, got {}", request.stages);
  const int devices = devices_of(request);
  PT_CHECK(request.stages <= devices, kUsage, "{} stages cannot run on {} devices", request.stages,
           devices);
  const StageCostModel model(chain, request, devices);
  PT_CHECK(request.stages <= model.count(), kUsage,
           "{} stages were asked for, but the model has only {} nodes to put into stages",
           request.stages, model.count());
  const LowerBound bound = lower_bound_of_devices(model);
  OptimumSearch<ChainRanges> search(model.ranges(), model.pricing(), request.stages);
  std::optional<Optimum> best = search.throughput(bound.seconds, request.tolerance);
  if (!best) fail_for_memory_of_devices(chain, request, devices);
  const bool mini_batch = wants_mini_batch(model);
  double mini_batch_bound = 0;
  if (mini_batch) {
    const Optimum whole = search.mini_batch(*best, std::max(request.tolerance, 1e-3));
    best->stages = whole.stages;
    mini_batch_bound = whole.bound;
  } else {
    best->stages = search.tidy(*best);
  }
  Plan plan = build_plan(model, decisions_of(best->stages));
  plan.lower_bound_seconds = bound.seconds;
  plan.lower_bound_reason = bound.reason;
  plan.mini_batch_bound_seconds = mini_batch_bound;
  add_notes(model, plan, mini_batch);
  plan.planning_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

}  // namespace pipetrain
