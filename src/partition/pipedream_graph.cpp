#include "partition/pipedream_graph.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/index.h"

namespace pipetrain {
namespace {

// So much that sums over all layers of a file stay below what a size can hold.
constexpr std::size_t kMostBytes = 100'000'000'000'000;

std::size_t whole_bytes(double bytes) {
  return static_cast<std::size_t>(std::llround(std::min(bytes, static_cast<double>(kMostBytes))));
}

std::size_t output_bytes(const CostGraph& graph, const PipeDreamNode& node,
                         const std::vector<int>& inputs) {
  const std::size_t written = whole_bytes(node.output_bytes());
  if (!node.description.starts_with("Concat")) return written;
  std::size_t joined = 0;
  for (const int input : inputs) joined += graph.nodes[at(input)].output_bytes;
  return std::clamp(joined, written, kMostBytes);
}

// The links of PipeDream's levels: those of the topology that join anything.
std::vector<TopologyLevel> links_of(const PlanRequest& request) {
  std::vector<TopologyLevel> out;
  for (const TopologyLevel& level : request.topology.levels) {
    if (level.count > 1) out.push_back(level);
  }
  if (out.empty()) out.push_back(level_of(request.transfer));
  return out;
}

double send_seconds(const TopologyLevel& link, std::size_t bytes) {
  if (bytes == 0) return 0;
  return link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second;
}

// A ring on every level, over the groups of the level below.
double all_reduce_seconds(const std::vector<TopologyLevel>& links, const CompatLeaf& leaf,
                          std::size_t bytes) {
  double out = 0;
  for (std::size_t l = 0; l < leaf.replicas.size(); ++l) {
    const double count = leaf.replicas[l];
    if (count == 1) continue;
    out += 2 * (count - 1) / count * static_cast<double>(bytes) / links[l].all_reduce_rate() +
           2 * std::ceil(std::log2(count)) * links[l].latency_seconds;
  }
  return out;
}

// Prices transfers and sums of gradients where PipeDream puts the stages.
void price_in_place(const std::vector<TopologyLevel>& links, const CompatPlan& compat,
                    GraphPlan& planned) {
  std::vector<StagePlan>& stages = planned.plan.stages;
  planned.plan.bottleneck_seconds = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StagePlan& stage = stages[s];
    const double compute = stage.forward_seconds + stage.backward_seconds;
    stage.transfer_seconds = 0;
    for (const std::size_t cut : {s, s + 1}) {
      if (cut == 0 || cut == stages.size()) continue;
      const TopologyLevel& link = links[at(compat.stages[cut].cut_level)];
      const auto before = at(stages[cut].first);
      stage.transfer_seconds += send_seconds(link, planned.chain.forward_bytes[before]) +
                                send_seconds(link, planned.chain.backward_bytes[before]);
    }
    stage.all_reduce_seconds = all_reduce_seconds(links, compat.stages[s], stage.parameter_bytes);
    stage.seconds = (compute + stage.transfer_seconds + stage.all_reduce_seconds) / stage.replicas;
    planned.plan.bottleneck_seconds = std::max(planned.plan.bottleneck_seconds, stage.seconds);
  }
}

}  // namespace

CostGraph cost_graph_of(const PipeDreamProfile& profile) {
  CostGraph graph;
  graph.nodes.resize(profile.nodes.size());
  for (const PipeDreamEdge& edge : profile.edges) {
    graph.nodes[at(edge.to)].inputs.push_back(edge.from);
  }
  for (const int index : topological_order(profile)) {
    const PipeDreamNode& from = profile.nodes[at(index)];
    CostNode& node = graph.nodes[at(index)];
    std::sort(node.inputs.begin(), node.inputs.end());
    node.inputs.erase(std::unique(node.inputs.begin(), node.inputs.end()), node.inputs.end());
    node.name = from.id + " " + from.description;
    if (node.inputs.empty() && from.is_input()) continue;
    const double backward = from.backward_milliseconds / 1e3;
    node.forward_seconds = from.forward_milliseconds / 1e3;
    node.weight_gradient_seconds = from.parameter_bytes > 0 ? backward / 2 : 0;
    node.input_gradient_seconds = backward - node.weight_gradient_seconds;
    node.parameter_bytes = whole_bytes(from.parameter_bytes);
    node.output_bytes = output_bytes(graph, from, node.inputs);
    node.gradient_bytes = node.output_bytes;
    node.saved_bytes = node.output_bytes;
  }
  return graph;
}

GraphPlan price_compat_plan(const PipeDreamProfile& profile, const CostGraph& graph,
                            const CompatPlan& compat, const PlanRequest& request) {
  GraphPlan out;
  out.order = topological_order(profile);
  const auto stage_of = [&](int node) { return compat.stage_of_node[at(node)]; };
  std::stable_sort(out.order.begin(), out.order.end(),
                   [&](int a, int b) { return stage_of(a) < stage_of(b); });
  out.chain = chain_of(graph, out.order);
  std::vector<int> cuts;
  for (int i = 1; at(i) < out.order.size(); ++i) {
    if (stage_of(out.order[at(i)]) != stage_of(out.order[at(i - 1)])) cuts.push_back(i);
  }
  std::vector<DeviceRange> devices;
  int first = 0;
  for (const CompatLeaf& stage : compat.stages) {
    devices.push_back({first, stage.devices});
    first += stage.devices;
  }
  out.plan = plan_with_cuts(out.chain, request, cuts, {}, devices);
  const std::vector<TopologyLevel> links = links_of(request);
  if (links.size() > 1 && links.size() == compat.stages[0].replicas.size()) {
    price_in_place(links, compat, out);
  }
  return out;
}

GraphPlan plan_not_slower_than(const GraphPlan& known, const CostGraph& graph,
                               const PlanRequest& request) {
  GraphPlan best = plan_graph(graph, request);
  if (best.plan.bottleneck_seconds <= known.plan.bottleneck_seconds) return best;
  GraphPlan other = known;
  other.orders = best.orders + 1;
  other.plan = plan_devices(known.chain, request);
  if (other.plan.bottleneck_seconds > known.plan.bottleneck_seconds) {
    other.plan = known.plan;
    other.plan.notes.push_back(
        "the stages of the plan compared with are kept: no plan whose stages lie within one group "
        "of "
        "devices, or on whole groups, is as fast");
  }
  other.plan.planning_seconds += best.plan.planning_seconds;
  return other;
}

}  // namespace pipetrain
