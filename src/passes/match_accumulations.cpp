#include "passes/match_accumulations.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

/// The parameters whose gradients each accumulation is part of.
std::vector<std::vector<std::size_t>> parameters_of_accumulations(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  std::vector<std::vector<std::size_t>> of_value(graph.values.size());
  std::vector<std::size_t> seen_by(graph.values.size(), training.parameters.size());
  std::vector<ValueId> open;
  for (std::size_t p = 0; p < training.parameters.size(); ++p) {
    open.assign(1, training.parameters[p].gradient);
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (!id) continue;
      const auto v = static_cast<std::size_t>(id.index);
      if (std::exchange(seen_by[v], p) == p) continue;
      if (graph[id].role == Role::kAccumulator) {
        of_value[v].push_back(p);
      } else if (graph[id].producer) {
        const std::vector<ValueId>& inputs = graph[graph[id].producer].inputs;
        open.insert(open.end(), inputs.begin(), inputs.end());
      }
    }
  }
  std::vector<std::vector<std::size_t>> out;
  for (const Accumulation& each : training.accumulations)
    out.push_back(std::move(of_value[static_cast<std::size_t>(each.accumulator.index)]));
  return out;
}

std::int64_t elements(const TrainingGraph& training, const Accumulation& accumulation) {
  return training.graph[accumulation.accumulator].type.shape.count();
}

}  // namespace

void match_accumulations(const TrainingGraph& first, TrainingGraph& training) {
  const auto wanted = parameters_of_accumulations(first),
             found = parameters_of_accumulations(training);
  std::vector<bool> is_taken(found.size(), false);
  std::vector<Accumulation> ordered;
  std::size_t begin = 0;  // of those that are not taken yet
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    while (begin < found.size() && is_taken[begin]) ++begin;
    std::size_t j = begin;
    while (j < found.size() && (is_taken[j] || found[j] != wanted[i] ||
                                elements(training, training.accumulations[j]) !=
                                    elements(first, first.accumulations[i])))
      ++j;
    PT_CHECK(j < found.size() && found.size() == wanted.size(), kUsage,
             "a micro-batch of {} samples computes the {} otherwise than one of {}; use a {} that "
             "divides {}, and {} unless it divides the number of samples, too",
             training.micro_batch, printable(first.graph[first.accumulations[i].accumulator].name),
             first.micro_batch, setting("micro-batch-size"), setting("batch-size"),
             setting("drop-last"));
    is_taken[j] = true;
    ordered.push_back(training.accumulations[j]);
  }
  training.accumulations = std::move(ordered);
}

}  // namespace pipetrain
