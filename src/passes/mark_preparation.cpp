#include "passes/mark_preparation.h"

#include <algorithm>

#include "graph/op.h"

namespace pipetrain {
namespace {

std::int64_t axes_of(const Shape& shape, std::int64_t elements) {
  return std::count(shape.begin(), shape.end(), elements);
}

/// Whether a node of weights and constants may repeat the weights: it expands them, or it has a
/// constant operand, such as the indices of a Gather or zeros that are added.
bool may_repeat(const Graph& graph, const Node& node) {
  const auto is_constant = [&](ValueId id) { return id && graph[id].role == Role::kConstant; };
  if (node.op->flags & kView || std::ranges::all_of(node.inputs, is_constant)) return false;
  return node.op->name == "Expand" || std::ranges::any_of(node.inputs, is_constant);
}

/// Whether the result has an axis for the samples that comes from no weight. Where an axis of
/// another meaning is as long, time is lost.
bool repeats_for_samples(const Graph& graph, const Node& node, std::int64_t samples) {
  if (samples <= 1 || !may_repeat(graph, node)) return false;
  const Shape& result = graph[node.outputs[0]].type.shape;
  const bool expands = node.op->name == "Expand";
  std::int64_t of_constants = 0, of_weights = 0;
  for (const ValueId id : node.inputs) {
    if (!id) continue;
    (graph[id].role == Role::kConstant ? of_constants : of_weights) +=
        axes_of(graph[id].type.shape, samples);
  }
  const bool broadcasts = expands || node.op->traits.kind == KernelKind::kElementwise;
  if ((expands || of_constants > 0) && axes_of(result, samples) > (broadcasts ? of_weights : 0))
    return true;
  // Samples may be cut into several rows each, such as windows.
  const Shape& weight = graph[node.inputs[0]].type.shape;
  const bool new_rows =
      expands && (weight.rank() < result.rank() || (weight.rank() > 0 && weight[0] != result[0]));
  return new_rows && result[0] % samples == 0;
}

}  // namespace

void mark_preparation(TrainingGraph& training, const TrainingGraph* first) {
  Graph& graph = training.graph;
  for (Node& node : graph.nodes) {
    if (node.part != Part::kForward || (node.op->flags & kRandom) || node.inputs.empty()) continue;
    const bool prepares = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      if (!id) return true;
      const Value& value = graph[id];
      return value.role == Role::kParameter || value.role == Role::kConstant ||
             (value.producer && graph[value.producer].part == Part::kPrepare);
    });
    if (!prepares) continue;
    const bool repeats = first ? first->repeating.contains(node.name) && may_repeat(graph, node)
                               : repeats_for_samples(graph, node, training.micro_batch);
    if (repeats) {
      training.repeating.insert(node.name);
    } else {
      node.part = Part::kPrepare;
    }
  }
}

}  // namespace pipetrain
