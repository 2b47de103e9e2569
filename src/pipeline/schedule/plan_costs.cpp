#include "pipeline/schedule/plan_costs.h"

#include <algorithm>

#include "partition/stage_cost.h"

namespace pipetrain {

Costs costs_of_plan(const Plan& plan, const ChainCosts& chain, int micro_batches) {
  Costs costs;
  for (const StagePlan& stage : plan.stages) {
    StageSeconds seconds;
    seconds.forward = stage.forward_seconds;
    seconds.backward = stage.backward_seconds;
    seconds.backward_input = seconds.backward_weight = 0;
    for (int at = stage.first; at < stage.last; ++at) {
      const ChainCost& element = chain.elements[static_cast<std::size_t>(at)];
      seconds.backward_input += element.input_gradient_seconds;
      seconds.backward_weight += element.weight_gradient_seconds;
    }
    // Of a device of the speed that the plan counts with.
    if (const double whole = seconds.backward_input + seconds.backward_weight; whole > 0) {
      seconds.backward_input *= stage.backward_seconds / whole;
      seconds.backward_weight *= stage.backward_seconds / whole;
    }
    seconds.recompute = stage.forward_seconds;
    seconds.update = stage.step_seconds * micro_batches;
    seconds.reduce = stage.all_reduce_seconds;
    costs.stage.push_back(seconds);
  }
  return costs;
}

void add_sums(const Plan& plan, const PlanRequest& request, const Topology& topology,
              const Program& program, Costs& costs) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<int>& devices = program.placement[s];
    const int replicas = static_cast<int>(devices.size());
    if (replicas == plan.stages[s].replicas || topology.levels.empty()) continue;
    const auto [first, last] = std::ranges::minmax(devices);
    const auto level = static_cast<std::size_t>(topology.common_level(first, last));
    const TopologyLevel& link = topology.levels[level];
    PlanRequest alike = request;
    alike.topology = {};
    alike.transfer = {link.latency_seconds, link.bytes_per_second,
                      link.all_reduce_bytes_per_second};
    costs.stage[s].reduce =
        StagePricing(alike, replicas).all_reduce_seconds(plan.stages[s].parameter_bytes, replicas);
  }
}

std::vector<Edge> edges_of_plan(const Plan& plan, const ChainCosts& chain) {
  std::vector<Edge> edges;
  for (std::size_t s = 1; s < plan.stages.size(); ++s) {
    const auto cut = static_cast<std::size_t>(plan.stages[s].first);
    const int from = static_cast<int>(s) - 1, to = static_cast<int>(s);
    edges.push_back(
        {from, to, static_cast<std::int64_t>(chain.forward_bytes[cut]), /*gradient=*/false});
    edges.push_back(
        {to, from, static_cast<std::int64_t>(chain.backward_bytes[cut]), /*gradient=*/true});
  }
  return edges;
}

WarmUpCosts warm_up_costs(const Plan& plan, const std::vector<Edge>& edges, const Costs& costs) {
  WarmUpCosts warm;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    warm.replicas.push_back(stage.replicas);
    warm.forward_seconds.push_back(costs.stage[s].forward);
    warm.backward_seconds.push_back(costs.stage[s].backward +
                                    (stage.recompute ? costs.stage[s].recompute : 0));
    if (s + 1 == plan.stages.size()) break;
    double hop = costs.link.latency_seconds;
    for (std::size_t e = 0; e < edges.size(); ++e) {
      const Edge& edge = edges[e];
      if (edge.from_stage != static_cast<int>(s) || edge.to_stage != static_cast<int>(s) + 1)
        continue;
      const LinkCost& link = costs.edge_link.empty() ? costs.link : costs.edge_link[e];
      hop += link.latency_seconds - costs.link.latency_seconds +
             static_cast<double>(edge.bytes_per_micro_batch) / link.bytes_per_second;
    }
    warm.hop_seconds.push_back(hop);
  }
  return warm;
}

std::vector<int> most_micro_batches_within(const Plan& plan, std::size_t memory_limit_bytes) {
  std::vector<int> most;
  for (const StagePlan& stage : plan.stages) {
    const auto held = static_cast<std::size_t>(std::max(1, stage.in_flight));
    // Where a stage recomputes, its inputs wait, and the activations are those of one micro-batch.
    const std::size_t each = stage.recompute
                                 ? (stage.memory.activation_bytes - stage.saved_bytes) / held
                                 : stage.saved_bytes;
    const std::size_t rest = stage.memory.total() - held * each;
    std::size_t room = kMostWarmUp;
    if (each > 0)
      room = std::min(room, memory_limit_bytes > rest ? (memory_limit_bytes - rest) / each : 0);
    most.push_back(static_cast<int>(std::max(room, held)));
  }
  return most;
}

WarmUpCosts with_memory_units(WarmUpCosts costs, int memory_units) {
  if (memory_units <= 0) return costs;
  costs.most_micro_batches.resize(costs.forward_seconds.size(), memory_units);
  for (int& most : costs.most_micro_batches) most = std::min(most, memory_units);
  return costs;
}

}  // namespace pipetrain
