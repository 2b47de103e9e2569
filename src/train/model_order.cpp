#include "train/model_order.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/index.h"
#include "partition/graph_planner.h"
#include "partition/orders.h"
#include "passes/linearise.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

// Limit on elements² × stages of a plan of one order.
constexpr double kMostWork = 2e7;
constexpr double kMostElements = 1500;
// Cost of a byte over a cut when orders are compared without link costs: about a copy.
constexpr double kNominalBytesPerSecond = 1e10;

// How a plan of an order is ranked.
struct Judged {
  double seconds = std::numeric_limits<double>::infinity();
  std::size_t bytes = 0;  // over its cuts, both ways
};

Judged judge(const ChainCosts& costs, const PlanRequest& request) {
  Judged out;
  try {
    const Plan plan = plan_stages(costs, request);
    out.seconds = plan.bottleneck_seconds;
    for (const int cut : plan.cuts())
      out.bytes += costs.forward_bytes[at(cut)] + costs.backward_bytes[at(cut)];
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;  // it does not fit
  }
  return out;
}

bool is_better(const Judged& other, const Judged& standard) {
  if (other.seconds < 0.99 * standard.seconds) return true;
  return other.seconds <= standard.seconds && other.bytes < standard.bytes;
}

}  // namespace

CostGraph cost_graph_of(const TrainingGraph& training, const Chain& chain,
                        const ChainCosts& costs) {
  const Graph& graph = training.graph;
  // A gradient runs where its forward node does.
  std::vector<int> place(graph.nodes.size(), -1);
  for (std::size_t i = 0; i < chain.order.size(); ++i)
    place[at(chain.order[i].index)] = static_cast<int>(i);
  const auto place_of = [&](NodeId id) {
    const Node& node = graph[id];
    return place[at(node.gradient_of ? node.gradient_of.index : id.index)];
  };
  // Of values that another stage reads.
  std::vector<bool> sent(graph.values.size(), false);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const int here = place_of({static_cast<int>(n)});
    for (const ValueId input : graph.nodes[n].inputs) {
      const NodeId producer = input ? graph[input].producer : NodeId{};
      if (producer && here >= 0 && place_of(producer) >= 0 && place_of(producer) != here)
        sent[at(input.index)] = true;
    }
  }
  const std::vector<std::vector<int>> inputs = inputs_of(training, chain);
  CostGraph out;
  for (std::size_t i = 0; i < chain.order.size(); ++i) {
    const ChainCost& cost = costs.elements[i];
    CostNode& node = out.nodes.emplace_back();
    node.name = cost.name;
    node.forward_seconds = cost.forward_seconds;
    node.input_gradient_seconds = cost.input_gradient_seconds;
    node.weight_gradient_seconds = cost.weight_gradient_seconds;
    node.step_seconds = cost.step_seconds;
    node.parameter_bytes = cost.parameter_bytes;
    node.saved_bytes = cost.saved_bytes;
    node.transient_bytes = cost.transient_bytes;
    node.inputs = inputs[i];
    for (const ValueId id : graph[chain.order[i]].outputs) {
      if (!sent[at(id.index)]) continue;
      node.output_bytes += graph[id].type.bytes();
      if (is_float(graph[id].type.dtype)) node.gradient_bytes += graph[id].type.bytes();
    }
  }
  return out;
}

bool can_reorder(const ChainCosts& costs, int stages) {
  const auto count = static_cast<double>(costs.elements.size());
  return stages >= 2 && count <= kMostElements && count * count * stages <= kMostWork;
}

std::vector<int> better_order(const TrainingGraph& training, const Profile& profile,
                              const Chain& chain, const ChainCosts& costs,
                              const PlanRequest& request) {
  if (!can_reorder(costs, request.stages)) return {};
  PlanRequest race;
  race.stages = 0;
  race.devices = request.stages;
  race.replication = false;
  race.schedule = planned_schedule("pipedream");
  race.recompute = Recompute::kNone;
  race.transfer = request.transfer;
  race.transfer.bytes_per_second = std::min(race.transfer.bytes_per_second, kNominalBytesPerSecond);
  const CostGraph network = cost_graph_of(training, chain, costs);
  const std::vector<int> standard = order_of(training, chain);
  std::vector<int> best;
  Judged least = judge(costs, request);
  for (std::vector<int> order : {plan_graph(network, race).order, smallest_cut_order(network),
                                 smallest_cut_order(network, {.from_the_end = true})}) {
    for (int& element : order) element = standard[at(element)];
    if (order == standard || order == best) continue;
    const Chain other = chain_in_order(training, order);
    const Judged judged = judge(chain_costs(training, other, profile), request);
    if (!is_better(judged, least)) continue;
    least = judged;
    best = order;
  }
  return best;
}

}  // namespace pipetrain
