#include "pipeline/schedule/plan_costs.h"

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
    seconds.recompute = stage.forward_seconds;
    seconds.update = stage.step_seconds * micro_batches;
    seconds.reduce = stage.all_reduce_seconds;
    costs.stage.push_back(seconds);
  }
  return costs;
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

}  // namespace pipetrain
