#include "partition/cost_graph.h"

#include <algorithm>

#include "base/error.h"

namespace pipetrain {

std::vector<std::vector<int>> readers_of(const CostGraph& graph) {
  const auto count = static_cast<int>(graph.nodes.size());
  std::vector<std::vector<int>> out(graph.nodes.size());
  for (int node = 0; node < count; ++node) {
    const CostNode& reader = graph.nodes[static_cast<std::size_t>(node)];
    for (const int input : reader.inputs) {
      PT_CHECK(input >= 0 && input < count && input != node, kModel,
               "node \"{}\" reads node {}, which is not another node of the graph",
               printable(reader.name), input);
      out[static_cast<std::size_t>(input)].push_back(node);
    }
  }
  return out;
}

ChainCosts chain_of(const CostGraph& graph, std::span<const int> order) {
  const std::size_t count = graph.nodes.size();
  PT_CHECK(order.size() == count, kUsage, "an order of {} nodes was given for a graph of {}",
           order.size(), count);
  std::vector<int> position(count, -1);
  for (std::size_t at = 0; at < count; ++at) {
    const int node = order[at];
    PT_CHECK(
        node >= 0 && node < static_cast<int>(count) && position[static_cast<std::size_t>(node)] < 0,
        kUsage, "the order of nodes has {} twice or not at all", node);
    position[static_cast<std::size_t>(node)] = static_cast<int>(at);
  }
  ChainCosts out;
  out.forward_bytes.assign(count + 1, 0);
  out.backward_bytes.assign(count + 1, 0);
  const std::vector<std::vector<int>> readers = readers_of(graph);
  for (std::size_t at = 0; at < count; ++at) {
    const auto id = static_cast<std::size_t>(order[at]);
    const CostNode& node = graph.nodes[id];
    ChainCost element;
    element.name = node.name;
    element.forward_seconds = node.forward_seconds;
    element.input_gradient_seconds = node.input_gradient_seconds;
    element.weight_gradient_seconds = node.weight_gradient_seconds;
    element.step_seconds = node.step_seconds;
    element.parameter_bytes = node.parameter_bytes;
    element.saved_bytes = node.saved_bytes;
    element.transient_bytes = node.transient_bytes;
    out.elements.push_back(std::move(element));
    int last = static_cast<int>(at);
    for (const int reader : readers[id]) {
      const int there = position[static_cast<std::size_t>(reader)];
      PT_CHECK(there > static_cast<int>(at), kUsage,
               "the order puts \"{}\" before its input \"{}\"",
               printable(graph.nodes[static_cast<std::size_t>(reader)].name), printable(node.name));
      last = std::max(last, there);
    }
    for (auto cut = at + 1; cut <= static_cast<std::size_t>(last); ++cut) {
      out.forward_bytes[cut] += node.output_bytes;
      out.backward_bytes[cut] += node.gradient_bytes;
    }
  }
  return out;
}

}  // namespace pipetrain
