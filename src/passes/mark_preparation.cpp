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
  if (!expands) return false;
  const Shape& weight = graph[node.inputs[0]].type.shape;
  const std::size_t added = result.rank() - weight.rank();
  for (std::size_t d = 0; d < result.rank(); ++d) {
    const std::int64_t had = d < added ? 1 : weight[d - added];
    if (had != result[d] && result[d] % samples == 0) return true;
  }
  return false;
}

/// Whether a node repeats a weight in the graph of larger micro-batches, too. What Lowering has
/// added for one sample is an Expand of the same name.
bool repeats_in(const RepeatingNodes& larger, const Node& node) {
  return larger.contains({node.name, std::string(node.op->name)}) ||
         (node.op->name == "Expand" && names_node(larger, node.name));
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
    const bool repeats = first ? repeats_in(first->repeating, node) && may_repeat(graph, node)
                               : repeats_for_samples(graph, node, training.micro_batch);
    if (repeats) {
      training.repeating.emplace(node.name, node.op->name);
    } else {
      node.part = Part::kPrepare;
    }
  }
}

}  // namespace pipetrain
