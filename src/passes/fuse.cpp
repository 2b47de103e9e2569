#include "passes/fuse.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "graph/op.h"
#include "passes/value_readers.h"

namespace pipetrain {
namespace {

struct Match {
  NodeId normalization, activation;
  NodeId activation_gradient, gradient;  // absent when the graph has no backward pass
};

constexpr std::string_view kLimits[] = {"Relu", "Clip"};
constexpr std::string_view kElementwiseActivations[] = {
    "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Silu", "Softplus"};

bool is_one_of(std::string_view op, std::span<const std::string_view> ops) {
  return std::ranges::find(ops, op) != ops.end();
}

bool is_norm(const Node& node) {
  return node.op->name == "BatchNorm" || node.op->name == "GroupNorm";
}

class Matcher {
 public:
  Matcher(const TrainingGraph& training, NormActivations activations)
      : graph_(training.graph),
        activations_(activations),
        readers_(readers_of_values(training.graph)),
        gradients_(training.graph.nodes.size()),
        outside_(values_read_outside(training)) {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (const NodeId forward = graph_.nodes[n].gradient_of)
        gradients_[static_cast<std::size_t>(forward.index)].push_back({static_cast<int>(n)});
    }
  }

  std::optional<Match> match(NodeId normalization) const {
    const Node& node = graph_[normalization];
    if (!is_norm(node) || node.part != Part::kForward) return {};
    const ValueId z = node.outputs[0];
    if (outside_.contains(z)) return {};
    Match found{normalization, {}, {}, {}};
    for (const NodeId reader : readers_[at(z)]) {
      const std::string_view op = graph_[reader].op->name;
      if (is_activation(op) && !found.activation) {
        found.activation = reader;
      } else if (graph_[reader].gradient_of && !found.activation_gradient) {
        found.activation_gradient = reader;
      } else {
        return {};
      }
    }
    if (!found.activation) return {};
    if (found.activation_gradient && !is_gradient(found.activation_gradient, found.activation))
      return {};
    found.gradient = only(gradients_of(normalization, std::string(node.op->name) + "Grad"));
    if (!found.gradient) {
      // Without a backward pass only; a frozen one is left alone.
      return found.activation_gradient || !gradients_of(found.activation, "").empty()
                 ? std::nullopt
                 : std::optional(found);
    }
    const ValueId dz = graph_[found.gradient].inputs[0];
    const NodeId producer = graph_[dz].producer;
    if (!producer || !is_gradient(producer, found.activation) || outside_.contains(dz)) return {};
    if (readers_[at(dz)].size() != 1) return {};
    if (found.activation_gradient && found.activation_gradient != producer) return {};
    found.activation_gradient = producer;
    return found;
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  bool is_activation(std::string_view op) const {
    return is_one_of(op, kLimits) || (activations_ == NormActivations::kElementwise &&
                                      is_one_of(op, kElementwiseActivations));
  }
  /// Whether a node is the gradient operator of this very activation.
  bool is_gradient(NodeId id, NodeId activation) const {
    return graph_[id].gradient_of == activation &&
           graph_[id].op->name == std::string(graph_[activation].op->name) + "Grad";
  }
  /// Gradient nodes of a forward node; of one operator unless `op` is empty.
  std::vector<NodeId> gradients_of(NodeId forward, std::string_view op) const {
    std::vector<NodeId> out = gradients_[static_cast<std::size_t>(forward.index)];
    std::erase_if(out, [&](NodeId id) { return !op.empty() && graph_[id].op->name != op; });
    return out;
  }
  static NodeId only(const std::vector<NodeId>& nodes) {
    return nodes.size() == 1 ? nodes[0] : NodeId{};
  }

  const Graph& graph_;
  const NormActivations activations_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<std::vector<NodeId>> gradients_;  // by forward node
  std::set<ValueId> outside_;                   // read by more than nodes
};

void set_activation(const Node& activation, Attributes& attributes) {
  if (!is_one_of(activation.op->name, kLimits)) {
    attributes.set("activation", std::string(activation.op->name));
    for (const auto& [name, value] : activation.attributes.items()) attributes.set(name, value);
    return;
  }
  if (activation.op->name == "Relu") {
    attributes.set("clip_min", 0.0);
    attributes.set("clip_open", std::int64_t{1});
    return;
  }
  for (const char* end : {"min", "max"}) {
    if (activation.attributes.has(end)) {
      attributes.set(std::string("clip_") + end, activation.attributes.real(end));
    }
  }
}

}  // namespace

void remove_nodes(TrainingGraph& training, const std::vector<NodeId>& heir) {
  Graph& graph = training.graph;
  std::vector<int> new_index(graph.nodes.size(), -1);
  std::vector<Node> kept;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (heir[n]) continue;
    new_index[n] = static_cast<int>(kept.size());
    kept.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(kept);
  const auto moved = [&](NodeId id) {
    if (!id) return id;
    const NodeId to = heir[static_cast<std::size_t>(id.index)];
    return NodeId{new_index[static_cast<std::size_t>((to ? to : id).index)]};
  };
  for (Value& value : graph.values) value.producer = {};
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    graph.nodes[n].gradient_of = moved(graph.nodes[n].gradient_of);
    for (const ValueId id : graph.nodes[n].outputs) graph[id].producer = {static_cast<int>(n)};
  }
  for (Accumulation& use : training.accumulations) use.consumer = moved(use.consumer);
}

int fuse_norm_activations(TrainingGraph& training, NormActivations activations) {
  Graph& graph = training.graph;
  if (std::ranges::none_of(graph.nodes, is_norm)) return 0;
  const Matcher matcher(training, activations);
  std::vector<Match> matches;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (const auto match = matcher.match({static_cast<int>(n)})) matches.push_back(*match);
  }
  if (matches.empty()) return 0;
  std::vector<NodeId> heir(graph.nodes.size());
  for (const Match& match : matches) {
    Node& normalization = graph[match.normalization];
    set_activation(graph[match.activation], normalization.attributes);
    normalization.outputs[0] = graph[match.activation].outputs[0];
    heir[static_cast<std::size_t>(match.activation.index)] = match.normalization;
    if (!match.gradient) continue;
    Node& gradient = graph[match.gradient];
    set_activation(graph[match.activation], gradient.attributes);
    gradient.inputs[0] = graph[match.activation_gradient].inputs[0];
    gradient.inputs.push_back(normalization.inputs[2]);
    heir[static_cast<std::size_t>(match.activation_gradient.index)] = match.gradient;
  }
  remove_nodes(training, heir);
  return static_cast<int>(matches.size());
}

}  // namespace pipetrain
