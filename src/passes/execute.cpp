#include "passes/execute.h"

#include "base/error.h"
#include "graph/op.h"

namespace pipetrain {

std::vector<HostTensor> execute(const Graph& graph, Backend backend,
                                const std::map<ValueId, HostTensor>& feeds,
                                const std::vector<ValueId>& wanted) {
  std::vector<bool> needed(graph.values.size(), false);
  for (const ValueId id : wanted) needed[static_cast<std::size_t>(id.index)] = true;
  std::vector<bool> runs(graph.nodes.size(), false);
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    for (const ValueId id : graph.nodes[n].outputs)
      runs[n] = runs[n] || needed[static_cast<std::size_t>(id.index)];
    if (!runs[n]) continue;
    for (const ValueId id : graph.nodes[n].inputs) {
      if (id) needed[static_cast<std::size_t>(id.index)] = true;
    }
  }
  std::map<ValueId, HostTensor> values = feeds;
  const auto value_of = [&](ValueId id) -> HostTensor& {
    const auto [found, added] = values.try_emplace(id);
    if (added) {
      found->second = graph[id].data;
      PT_CHECK(static_cast<bool>(found->second), kInternal, "value {} has no content",
               graph[id].name);
    }
    return found->second;
  };
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!runs[n]) continue;
    if (node.op->flags & kView) {
      values[node.outputs[0]] =
          value_of(node.inputs[0]).reshaped(graph[node.outputs[0]].type.shape);
      continue;
    }
    std::vector<Tensor> in, out;
    for (const ValueId id : node.inputs) in.push_back(id ? value_of(id).view() : Tensor{});
    for (const ValueId id : node.outputs) {
      values[id] = HostTensor(graph[id].type);
      out.push_back(values[id].view());
    }
    const auto kernel =
        make_kernel(backend, {node, graph.input_types(node), graph.output_types(node)});
    const Buffer workspace(kernel->workspace_bytes());
    RunContext context;
    context.workspace = workspace.data();
    kernel->run(in, out, context);
  }
  std::vector<HostTensor> out;
  for (const ValueId id : wanted) out.push_back(value_of(id));
  return out;
}

}  // namespace pipetrain
