#include "passes/patterns.h"

#include <cmath>
#include <numbers>
#include <optional>

#include "graph/op.h"
#include "ops/registry.h"

namespace pipetrain {
namespace {

class Matcher {
 public:
  explicit Matcher(const Graph& graph) : graph_(graph), uses_(graph.values.size(), 0) {
    for (const Node& node : graph.nodes) {
      for (const ValueId id : node.inputs) {
        if (id) ++uses_[static_cast<std::size_t>(id.index)];
      }
    }
  }

  /// The node that computes `value` if it is an `op` that nothing else reads.
  const Node* only_use(ValueId value, std::string_view op) const {
    if (!value || !graph_[value].producer || uses_[static_cast<std::size_t>(value.index)] != 1)
      return nullptr;
    const Node& node = graph_[graph_[value].producer];
    return node.op->name == op ? &node : nullptr;
  }

  std::optional<double> scalar(ValueId value) const {
    if (!value || graph_[value].role != Role::kConstant || graph_[value].type.count() != 1)
      return {};
    return graph_[value].data.to_doubles()[0];
  }

  /// The other operand of a binary node whose one operand is the given scalar.
  ValueId other_than(const Node& node, double constant) const {
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const auto value = scalar(node.inputs[slot]);
      if (value && std::abs(*value - constant) < 1e-4) return node.inputs[1 - slot];
    }
    return {};
  }

  /// x of 1 + erf(x / √2), absent when `value` is something else.
  ValueId normal_cdf_argument(ValueId value) const {
    const Node* add = only_use(value, "Add");
    if (!add) return {};
    const Node* erf = only_use(other_than(*add, 1.0), "Erf");
    if (!erf) return {};
    if (const Node* div = only_use(erf->inputs[0], "Div")) {
      const auto divisor = scalar(div->inputs[1]);
      return divisor && std::abs(*divisor - std::numbers::sqrt2) < 1e-4 ? div->inputs[0]
                                                                        : ValueId{};
    }
    if (const Node* mul = only_use(erf->inputs[0], "Mul"))
      return other_than(*mul, 1.0 / std::numbers::sqrt2);
    return {};
  }

  /// x when `node` is Mul(x, 1 + erf(x / √2)), in either order.
  ValueId twice_gelu_argument(const Node& node) const {
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const ValueId x = normal_cdf_argument(node.inputs[slot]);
      if (x && x == node.inputs[1 - slot]) return x;
    }
    return {};
  }

  /// x when `node` computes the GELU of x.
  ValueId gelu_argument(const Node& node) const {
    if (const Node* inner = only_use(other_than(node, 0.5), "Mul")) {  // ½ · (x · (1 + erf))
      if (const ValueId x = twice_gelu_argument(*inner)) return x;
    }
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const ValueId other = node.inputs[1 - slot];
      if (const ValueId x = normal_cdf_argument(node.inputs[slot])) {  // (½ · x) · (1 + erf)
        const Node* half = only_use(other, "Mul");
        if (half && other_than(*half, 0.5) == x) return x;
      }
      if (const Node* half = only_use(node.inputs[slot], "Mul")) {  // x · (½ · (1 + erf))
        if (normal_cdf_argument(other_than(*half, 0.5)) == other) return other;
      }
    }
    return {};
  }

 private:
  const Graph& graph_;
  std::vector<int> uses_;
};

}  // namespace

int fuse_gelu(Graph& graph) {
  int found = 0;
  const Matcher matcher(graph);
  std::vector<std::pair<std::size_t, ValueId>> replacements;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op->name != "Mul") continue;
    const ValueId x = matcher.gelu_argument(graph.nodes[n]);
    if (x && graph[x].type == graph[graph.nodes[n].outputs[0]].type)
      replacements.emplace_back(n, x);
  }
  for (const auto& [n, x] : replacements) {
    Node& node = graph.nodes[n];
    node.op = find_op("Gelu");
    node.inputs = {x};
    node.attributes = {{"approximate", std::string("none")}};
    ++found;
  }
  return found;
}

}  // namespace pipetrain
