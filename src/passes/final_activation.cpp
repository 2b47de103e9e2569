// Where the classes of an output are, and the activation after which it is a probability.
#include <optional>
#include <string_view>

#include "graph/op.h"
#include "passes/loss.h"

namespace pipetrain {
namespace {

/// The axis of `before` that a Reshape keeps as `axis` of `after`, if there is one.
std::optional<std::size_t> axis_before(const Shape& before, const Shape& after, std::size_t axis) {
  const std::int64_t behind = after.count(axis + 1, after.rank());
  for (std::size_t i = 0; i < before.rank(); ++i) {
    if (before[i] == after[axis] && before.count(i + 1, before.rank()) == behind) return i;
  }
  return {};
}

/// Whether a permutation moves channels, the second axis, after all others: (0, 2, 3, 1).
bool moves_channels_last(const Ints& perm) {
  for (std::size_t i = 1; i + 1 < perm.size(); ++i) {
    if (perm[i] != static_cast<std::int64_t>(i) + 1) return false;
  }
  return perm.size() >= 4 && perm.front() == 0 && perm.back() == 1;
}

/// The activation that computes an output with the classes on `axis`. None: only a Sigmoid is
/// found.
std::optional<FinalActivation> activation_over(std::optional<std::size_t> axis, const Graph& graph,
                                               ValueId output) {
  FinalActivation found;
  for (found.node = graph[output].producer; found.node;) {
    const Node& node = graph[found.node];
    const std::string_view op = node.op->name;
    const ValueId x = node.inputs.empty() ? ValueId{} : node.inputs[0];
    if (op == "Sigmoid") return found;
    if (op == "Softmax" || op == "LogSoftmax") {
      const auto rank = static_cast<std::int64_t>(graph[x].type.shape.rank());
      const std::int64_t over = node.attributes.integer("axis");
      const bool classes = axis && static_cast<std::int64_t>(*axis) == (over + rank) % rank;
      return classes ? std::optional(found) : std::nullopt;
    }
    if (op == "Transpose") {
      if (axis) axis = static_cast<std::size_t>(node.attributes.ints("perm")[*axis]);
    } else if (op == "Reshape") {  // may lose the axis
      if (axis) axis = axis_before(graph[x].type.shape, graph[node.outputs[0]].type.shape, *axis);
    } else {
      return {};
    }
    found.moves.push_back(found.node);
    found.node = graph[x].producer;
  }
  return {};
}

/// Whether an output ends in a LogSoftmax over its second axis. A Softmax there may be over
/// positions.
bool has_classes_second(const Graph& graph, ValueId output) {
  const std::optional<FinalActivation> found = activation_over(std::size_t{1}, graph, output);
  return found && graph[found->node].op->name == "LogSoftmax";
}

}  // namespace

std::size_t class_axis(const Graph& graph, ValueId output) {
  const Shape& shape = graph[output].type.shape;
  const std::size_t last = shape.rank() - 1;
  if (shape.rank() == 3) return has_classes_second(graph, output) ? 1 : last;
  if (shape.rank() < 3) return last;
  std::optional<std::size_t> axis = last;  // of the value that was reached, from where the last is
  for (NodeId at = graph[output].producer; at && axis;) {
    const Node& node = graph[at];
    const std::string_view op = node.op->name;
    const ValueId x = node.inputs.empty() ? ValueId{} : node.inputs[0];
    if (op == "Softmax" || op == "LogSoftmax") {
      const auto rank = static_cast<std::int64_t>(graph[x].type.shape.rank());
      const std::int64_t over = (node.attributes.integer("axis") + rank) % rank;
      return static_cast<std::int64_t>(*axis) == over ? last : 1;
    }
    if (op == "Transpose") {
      const Ints perm = node.attributes.ints("perm");
      axis = static_cast<std::size_t>(perm[*axis]);
      if (*axis == 1 && moves_channels_last(perm)) return last;
    } else if (op == "Reshape") {
      axis = axis_before(graph[x].type.shape, graph[node.outputs[0]].type.shape, *axis);
    } else if (op != "Sigmoid") {
      break;
    }
    at = graph[x].producer;
  }
  return 1;
}

std::optional<FinalActivation> final_activation(const Graph& graph, ValueId output) {
  if (graph[output].type.shape.rank() == 0) return activation_over({}, graph, output);
  return activation_over(class_axis(graph, output), graph, output);
}

}  // namespace pipetrain
