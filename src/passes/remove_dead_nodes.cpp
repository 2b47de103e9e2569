#include <algorithm>

#include "passes/lower.h"

namespace pipetrain {

void remove_dead_nodes(Graph& graph, const std::vector<ValueId>& keep) {
  std::vector<bool> live(graph.values.size(), false);
  for (const ValueId id : keep) {
    if (id) live[static_cast<std::size_t>(id.index)] = true;
  }
  std::vector<int> new_index(graph.nodes.size(), -1);
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const bool wanted = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return live[static_cast<std::size_t>(id.index)];
    });
    if (!wanted) continue;
    new_index[n] = 0;
    for (const ValueId id : node.inputs) {
      if (id) live[static_cast<std::size_t>(id.index)] = true;
    }
  }
  std::size_t kept = 0;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (new_index[n] < 0) continue;
    new_index[n] = static_cast<int>(kept);
    if (kept < n) graph.nodes[kept] = std::move(graph.nodes[n]);
    ++kept;
  }
  graph.nodes.resize(kept);
  for (Value& value : graph.values) {
    if (value.producer)
      value.producer = {new_index[static_cast<std::size_t>(value.producer.index)]};
  }
  for (Node& node : graph.nodes) {
    if (node.gradient_of)
      node.gradient_of = {new_index[static_cast<std::size_t>(node.gradient_of.index)]};
  }
}

}  // namespace pipetrain
