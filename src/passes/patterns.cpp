// Activations written in primitives, and the order of all patterns.
#include "passes/patterns.h"

#include <numbers>

#include "ops/registry/registry.h"
#include "passes/graph_match.h"

namespace pipetrain {
namespace {

/// What a chain computes: the canonical operator and its argument.
struct Activation {
  ValueId x;
  const char* approximate = nullptr;
};

class ActivationMatcher : public Matcher {
 public:
  using Matcher::Matcher;

  /// The GELU that `node` computes from the value of 1 + erf(…) or 1 + tanh(…); no x: none.
  Activation gelu(const Node& node) const {
    if (const Node* inner = only_use(other_than(node, 0.5), "Mul")) {  // ½ · (x · (1 + …))
      if (const Activation found = twice_gelu(*inner); found.x) return found;
    }
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const ValueId other = node.inputs[1 - slot];
      if (const Activation found = twice_cdf(node.inputs[slot]); found.x) {  // (½ · x) · (1 + …)
        const Node* half = only_use(other, "Mul");
        if (half && other_than(*half, 0.5) == found.x) return found;
      }
      if (const Node* half = only_use(node.inputs[slot], "Mul")) {  // x · (½ · (1 + …))
        const Activation found = twice_cdf(other_than(*half, 0.5));
        if (found.x && found.x == other) return found;
      }
    }
    return {};
  }

  /// x when `node` is x sigmoid(x).
  ValueId silu(const Node& node) const {
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const Node* sigmoid = only_use(node.inputs[slot], "Sigmoid");
      if (sigmoid && sigmoid->inputs[0] == node.inputs[1 - slot]) return node.inputs[1 - slot];
    }
    return {};
  }

 private:
  Activation twice_gelu(const Node& node) const {
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const Activation found = twice_cdf(node.inputs[slot]);
      if (found.x && found.x == node.inputs[1 - slot]) return found;
    }
    return {};
  }

  /// x of 1 + erf(x / √2) or 1 + tanh(√(2/π) (x + 0.044715 x³)).
  Activation twice_cdf(ValueId value) const {
    const Node* add = only_use(value, "Add");
    if (!add) return {};
    const ValueId rest = other_than(*add, 1.0);
    if (const Node* erf = only_use(rest, "Erf")) return {erf_argument(erf->inputs[0]), "none"};
    if (const Node* tanh = only_use(rest, "Tanh")) return {tanh_argument(tanh->inputs[0]), "tanh"};
    return {};
  }

  ValueId erf_argument(ValueId value) const {
    if (const Node* div = only_use(value, "Div")) {
      return is_scalar(div->inputs[1], std::numbers::sqrt2) ? div->inputs[0] : ValueId{};
    }
    const Node* mul = only_use(value, "Mul");
    return mul ? other_than(*mul, 1.0 / std::numbers::sqrt2) : ValueId{};
  }

  ValueId tanh_argument(ValueId value) const {
    const Node* mul = only_use(value, "Mul");
    if (!mul) return {};
    const Node* sum = only_use(other_than(*mul, std::sqrt(2.0 / std::numbers::pi)), "Add");
    if (!sum) return {};
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const ValueId x = sum->inputs[1 - slot];
      const Node* cubic = only_use(sum->inputs[slot], "Mul");
      if (cubic && is_cube(other_than(*cubic, 0.044715), x)) return x;
    }
    return {};
  }

  bool is_cube(ValueId value, ValueId x) const {
    if (const Node* power = only_use(value, "PowScalar")) {
      return power->inputs[0] == x && power->attributes.real("exponent") == 3;
    }
    const Node* outer = only_use(value, "Mul");  // x · (x · x)
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      if (!outer || outer->inputs[1 - slot] != x) continue;
      const Node* square = only_use(outer->inputs[slot], "Mul");
      if (square && square->inputs[0] == x && square->inputs[1] == x) return true;
    }
    return false;
  }
};

}  // namespace

int fuse_activations(Graph& graph) {
  const ActivationMatcher matcher(graph);
  std::vector<std::pair<std::size_t, Activation>> found;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->name != "Mul") continue;
    Activation activation = matcher.gelu(node);
    if (!activation.x) activation = {matcher.silu(node)};
    if (activation.x && graph[activation.x].type == graph[node.outputs[0]].type) {
      found.emplace_back(n, activation);
    }
  }
  for (const auto& [n, activation] : found) {
    Node& node = graph.nodes[n];
    node.op = find_op(activation.approximate ? "Gelu" : "Silu");
    node.inputs = {activation.x};
    node.attributes = {};
    if (activation.approximate) {
      node.attributes.set("approximate", std::string(activation.approximate));
    }
  }
  return static_cast<int>(found.size());
}

void fuse_patterns(Graph& graph, std::span<const ValueId> outputs) {
  fuse_activations(graph);
  fuse_norms(graph);
  fuse_group_norms(graph);
  fuse_rotary(graph);
  fuse_attention(graph, outputs);
  fuse_permuted_weights(graph);
  join_slices(graph);  // the last one: other patterns contain slices
}

}  // namespace pipetrain
