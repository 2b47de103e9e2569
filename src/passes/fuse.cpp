#include "passes/fuse.h"

#include <algorithm>
#include <optional>
#include <set>

#include "graph/op.h"
#include "passes/value_readers.h"

namespace pipetrain {
namespace {

struct Match {
  NodeId normalization, activation;
  NodeId activation_gradient, gradient;  // absent when the graph has no backward pass
};

class Matcher {
 public:
  explicit Matcher(const TrainingGraph& training)
      : graph_(training.graph),
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
    if (node.op->name != "BatchNorm" || node.part != Part::kForward) return {};
    const ValueId z = node.outputs[0];
    if (outside_.contains(z)) return {};
    Match found{normalization, {}, {}, {}};
    for (const NodeId reader : readers_[at(z)]) {
      if (is(reader, {"Relu", "Clip"}) && !found.activation) {
        found.activation = reader;
      } else if (is(reader, {"ClipGrad"}) && !found.activation_gradient) {
        found.activation_gradient = reader;
      } else {
        return {};
      }
    }
    if (!found.activation) return {};
    found.gradient = only(gradients_of(normalization, "BatchNormGrad"));
    if (!found.gradient) {
      // Without a backward pass only; a frozen one is left alone.
      return found.activation_gradient || !gradients_of(found.activation, "").empty()
                 ? std::nullopt
                 : std::optional(found);
    }
    const ValueId dz = graph_[found.gradient].inputs[0];
    const NodeId producer = graph_[dz].producer;
    if (!producer || !is(producer, {"ReluGrad", "ClipGrad"}) || outside_.contains(dz)) return {};
    if (graph_[producer].gradient_of != found.activation || readers_[at(dz)].size() != 1) return {};
    if (found.activation_gradient && found.activation_gradient != producer) return {};
    found.activation_gradient = producer;
    return found;
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  bool is(NodeId id, std::initializer_list<std::string_view> ops) const {
    return std::find(ops.begin(), ops.end(), graph_[id].op->name) != ops.end();
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
  std::vector<std::vector<NodeId>> readers_;
  std::vector<std::vector<NodeId>> gradients_;  // by forward node
  std::set<ValueId> outside_;                   // read by more than nodes
};

void set_limits(const Node& activation, Attributes& attributes) {
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

int fuse_batch_norm_activations(TrainingGraph& training) {
  Graph& graph = training.graph;
  if (std::ranges::none_of(graph.nodes, [](const Node& n) { return n.op->name == "BatchNorm"; }))
    return 0;
  const Matcher matcher(training);
  std::vector<Match> matches;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (const auto match = matcher.match({static_cast<int>(n)})) matches.push_back(*match);
  }
  if (matches.empty()) return 0;
  std::vector<NodeId> heir(graph.nodes.size());
  for (const Match& match : matches) {
    Node& normalization = graph[match.normalization];
    set_limits(graph[match.activation], normalization.attributes);
    normalization.outputs[0] = graph[match.activation].outputs[0];
    heir[static_cast<std::size_t>(match.activation.index)] = match.normalization;
    if (!match.gradient) continue;
    Node& gradient = graph[match.gradient];
    set_limits(graph[match.activation], gradient.attributes);
    gradient.inputs[0] = graph[match.activation_gradient].inputs[0];
    gradient.inputs.push_back(normalization.inputs[2]);
    heir[static_cast<std::size_t>(match.activation_gradient.index)] = match.gradient;
  }
  remove_nodes(training, heir);
  return static_cast<int>(matches.size());
}

}  // namespace pipetrain
