// The graphs of a network for each size of its micro-batches, cut into the same stages.
#pragma once

#include <memory>
#include <vector>

#include "passes/linearise.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/stage/slice.h"

namespace pipetrain::test {

struct CutGraphs {
  std::vector<RuntimeVariant> variants;  // one for each graph
  std::vector<Edge> edges;
  bool has_tied_stages = false;
};

/// Chain positions at which `stages` stages of equally many nodes start.
inline std::vector<int> even_starts(const Chain& chain, int stages) {
  std::vector<int> starts;
  for (int s = 0; s < stages; ++s)
    starts.push_back(static_cast<int>(chain.order.size()) * s / stages);
  return starts;
}

/// Slices a graph that is cut into two stages, once for every place of its chain.
inline void cut_everywhere(const TrainingGraph& training) {
  const Chain chain = linearise(training);
  for (int cut = 1; cut < static_cast<int>(chain.order.size()); ++cut)
    slice_stages(training, stages_of_chain(training, chain, {0, cut}), 2);
}

/// Cuts all graphs where the first one is cut at the chain positions `starts`.
inline CutGraphs cut_graphs(const std::vector<std::unique_ptr<TrainingGraph>>& graphs,
                            const std::vector<int>& starts) {
  const TrainingGraph& first = *graphs.front();
  const std::vector<int> stage_of = stages_of_chain(first, linearise(first), starts);
  CutGraphs out;
  for (const auto& graph : graphs)
    out.variants.push_back({graph.get(), carry_stages(first, stage_of, *graph)});
  const Slices slices = slice_stages(first, stage_of, static_cast<int>(starts.size()));
  out.has_tied_stages = slices.has_tied_stages;
  for (const ValueEdge& edge : slices.edges)
    out.edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
  return out;
}

}  // namespace pipetrain::test
