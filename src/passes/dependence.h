// Which values of a graph depend on which.
#pragma once

#include <algorithm>
#include <vector>

#include "graph/graph.h"

namespace pipetrain {

/// By value: whether it depends on a value of this role, or is one.
inline std::vector<bool> depending_on(const Graph& graph, Role role) {
  std::vector<bool> depends(graph.values.size());
  for (std::size_t v = 0; v < depends.size(); ++v) depends[v] = graph.values[v].role == role;
  for (const Node& node : graph.nodes) {
    const bool any = std::ranges::any_of(node.inputs, [&](ValueId id) {
      return id && depends[static_cast<std::size_t>(id.index)];
    });
    for (const ValueId id : node.outputs) {
      if (id) depends[static_cast<std::size_t>(id.index)] = any;
    }
  }
  return depends;
}

}  // namespace pipetrain
