#include "passes/linearise.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace pipetrain {

Chain linearise(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  Chain chain;
  std::vector<int> position(graph.nodes.size(), -1);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].part != Part::kForward) continue;
    position[n] = static_cast<int>(chain.order.size());
    chain.order.push_back({static_cast<int>(n)});
  }
  // Where a node runs: a forward node at its own position, a gradient node at that of its forward
  // node.
  const auto place = [&](const Node& node, std::size_t n) {
    if (node.part == Part::kForward) return position[n];
    return node.gradient_of ? position[static_cast<std::size_t>(node.gradient_of.index)] : -1;
  };
  const std::size_t cuts = chain.order.size() + 1;
  chain.forward_bytes.assign(cuts, 0);
  chain.backward_bytes.assign(cuts, 0);
  std::vector<int> first(graph.values.size(), -1), last(graph.values.size(), -1);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.part == Part::kPrepare || node.part == Part::kFinish) continue;
    const int here = place(node, n);
    for (const ValueId id : node.outputs)
      first[static_cast<std::size_t>(id.index)] = last[static_cast<std::size_t>(id.index)] = here;
    for (const ValueId id : node.inputs) {
      if (!id || first[static_cast<std::size_t>(id.index)] < 0) continue;
      int& end = last[static_cast<std::size_t>(id.index)];
      const bool gradient = graph[id].role == Role::kGradient;
      end = gradient ? std::min(end, here) : std::max(end, here);
    }
  }
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (first[v] < 0) continue;
    auto& bytes =
        graph.values[v].role == Role::kGradient ? chain.backward_bytes : chain.forward_bytes;
    const int low = std::min(first[v], last[v]), high = std::max(first[v], last[v]);
    for (int cut = low + 1; cut <= high; ++cut)
      bytes[static_cast<std::size_t>(cut)] += graph.values[v].type.bytes();
  }
  return chain;
}

std::vector<int> stages_of_chain(const TrainingGraph& training, const Chain& chain,
                                 const std::vector<int>& starts) {
  std::vector<int> stages(training.graph.nodes.size(), -1);
  int stage = -1;
  for (std::size_t i = 0; i < chain.order.size(); ++i) {
    while (stage + 1 < static_cast<int>(starts.size()) &&
           starts[static_cast<std::size_t>(stage + 1)] <= static_cast<int>(i))
      ++stage;
    stages[static_cast<std::size_t>(chain.order[i].index)] = std::max(stage, 0);
  }
  return stages;
}

std::vector<int> carry_stages(const TrainingGraph& from, const std::vector<int>& stages,
                              const TrainingGraph& to) {
  std::map<std::string, std::vector<int>> known;
  for (std::size_t n = 0; n < from.graph.nodes.size(); ++n) {
    if (from.graph.nodes[n].part == Part::kForward)
      known[from.graph.nodes[n].name].push_back(stages[n]);
  }
  std::vector<int> out(to.graph.nodes.size(), -1);
  std::map<std::string, std::size_t> seen;
  int current = 0;
  for (std::size_t n = 0; n < to.graph.nodes.size(); ++n) {
    const Node& node = to.graph.nodes[n];
    if (node.part != Part::kForward) continue;
    const auto found = known.find(node.name);
    if (found != known.end()) {
      const std::size_t k = std::min(seen[node.name]++, found->second.size() - 1);
      current = std::max(current, found->second[k]);
    }
    out[n] = current;
  }
  return out;
}

}  // namespace pipetrain
