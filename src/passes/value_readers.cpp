#include "passes/value_readers.h"

namespace pipetrain {

std::vector<std::vector<NodeId>> readers_of_values(const Graph& graph) {
  std::vector<std::vector<NodeId>> readers(graph.values.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId id : graph.nodes[n].inputs) {
      if (id) readers[static_cast<std::size_t>(id.index)].push_back({static_cast<int>(n)});
    }
  }
  return readers;
}

std::set<ValueId> values_read_outside(const TrainingGraph& training) {
  std::set<ValueId> outside(training.outputs.begin(), training.outputs.end());
  for (const Accumulation& use : training.accumulations) outside.insert(use.contribution);
  return outside;
}

}  // namespace pipetrain
