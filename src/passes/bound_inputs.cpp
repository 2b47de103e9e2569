#include "passes/bound_inputs.h"

#include <algorithm>
#include <map>

#include "graph/op.h"

namespace pipetrain {

void bound_inputs(TrainingGraph& training) {
  const Graph& graph = training.graph;
  std::map<ValueId, GraphInput*> inputs;
  for (GraphInput& input : training.inputs) inputs[input.value] = &input;
  std::vector<ValueId> sources(graph.values.size());  // whose elements a value has; absent: its own
  const auto source_of = [&](ValueId value) {
    const ValueId source = sources[static_cast<std::size_t>(value.index)];
    return source ? source : value;
  };
  for (const Node& node : graph.nodes) {
    const std::string_view op = node.op->name;
    if (op == "Reshape" || op == "Cast" || op == "Transpose")
      sources[static_cast<std::size_t>(node.outputs[0].index)] = source_of(node.inputs[0]);
    if (op != "Gather" || node.attributes.integer("axis", 0) != 0) continue;
    const auto input = inputs.find(source_of(node.inputs[1]));
    if (input == inputs.end()) continue;
    const std::int64_t rows = graph[node.inputs[0]].type.shape[0];
    std::int64_t& bound = input->second->upper_bound;
    bound = bound < 0 ? rows : std::min(bound, rows);
  }
}

}  // namespace pipetrain
