// Queries for pattern matching on a forward graph.
#pragma once

#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op.h"

namespace pipetrain {

class Matcher {
 public:
  explicit Matcher(const Graph& graph)
      : graph_(graph), uses_(graph.values.size(), 0), reader_(graph.values.size(), -1) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const ValueId id : graph.nodes[n].inputs) {
        if (!id) continue;
        ++uses_[index(id)];
        reader_[index(id)] = static_cast<int>(n);
      }
    }
  }

  const Graph& graph() const { return graph_; }
  const Shape& shape(ValueId id) const { return graph_[id].type.shape; }
  int uses(ValueId value) const { return uses_[index(value)]; }

  /// The node that computes `value` if it is an `op`.
  const Node* producer(ValueId value, std::string_view op) const {
    if (!value || !graph_[value].producer) return nullptr;
    const Node& node = graph_[graph_[value].producer];
    return node.op->name == op ? &node : nullptr;
  }

  /// The node that computes `value` if it is an `op` that nothing else reads.
  const Node* only_use(ValueId value, std::string_view op) const {
    return value && uses(value) == 1 ? producer(value, op) : nullptr;
  }

  /// Index of the only node that reads `value` if it is an `op`; -1 otherwise.
  int only_reader(ValueId value, std::string_view op) const {
    if (uses(value) != 1) return -1;
    const int node = reader_[index(value)];
    return graph_.nodes[static_cast<std::size_t>(node)].op->name == op ? node : -1;
  }

  std::optional<double> scalar(ValueId value) const {
    if (!value || graph_[value].role != Role::kConstant || graph_[value].type.count() != 1)
      return {};
    return graph_[value].data.to_doubles()[0];
  }
  bool is_scalar(ValueId value, double expected, double tolerance = 1e-4) const {
    const auto found = scalar(value);
    return found && std::abs(*found - expected) < tolerance;
  }

  /// The other operand of a binary node whose one operand is the given scalar.
  ValueId other_than(const Node& node, double constant) const {
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      if (is_scalar(node.inputs[slot], constant)) return node.inputs[1 - slot];
    }
    return {};
  }

  bool is_transpose(const Node* node, const Ints& perm) const {
    return node && node->attributes.ints("perm") == perm;
  }

 private:
  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id.index); }

  const Graph& graph_;
  std::vector<int> uses_;
  std::vector<int> reader_;  // the last one
};

}  // namespace pipetrain
