// LayerNorm before opset 17, and the norm by the root of the mean square before opset 23.
#include "passes/dependence.h"
#include "passes/graph_match.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

/// x normalised over its last axis.
struct Norm {
  ValueId x;
  double epsilon = 0;
  bool centred = false;  // minus the mean
};

class NormMatcher : public Matcher {
 public:
  explicit NormMatcher(const Graph& graph)
      : Matcher(graph), varies_(depending_on(graph, Role::kInput)) {}

  /// Whether a value depends on what is fed.
  bool varies(ValueId value) const { return varies_[static_cast<std::size_t>(value.index)]; }

  /// The norm that `node` computes, scale and shift aside; no x: none.
  Norm of(const Node& node) const {
    if (node.op->name == "Div") return divided(node.inputs[0], node.inputs[1]);
    if (node.op->name != "Mul") return {};
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const Node* inverse = only_use(node.inputs[slot], "Reciprocal");
      if (!inverse) continue;
      if (const Norm found = divided(node.inputs[1 - slot], inverse->inputs[0]); found.x) {
        return found;
      }
    }
    return {};
  }

 private:
  /// numerator / sqrt(mean(numerator²) + ε)
  Norm divided(ValueId numerator, ValueId denominator) const {
    const Node* root = only_use(denominator, "Sqrt");
    const Node* sum = root ? only_use(root->inputs[0], "Add") : nullptr;
    if (!sum) return {};
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const auto epsilon = scalar(sum->inputs[slot]);
      const ValueId squares = epsilon ? squares_of_mean(sum->inputs[1 - slot]) : ValueId{};
      if (!squares || !is_square_of(squares, numerator)) continue;
      if (const ValueId x = centred_input(numerator)) return {x, *epsilon, true};
      return {numerator, *epsilon, false};
    }
    return {};
  }

  /// What the mean over the last axis is of.
  ValueId squares_of_mean(ValueId value) const {
    const Node* mean = only_use(value, "ReduceMean");
    return mean && is_over_last_axis(*mean) ? mean->inputs[0] : ValueId{};
  }

  bool is_over_last_axis(const Node& reduce) const {
    const auto rank = static_cast<std::int64_t>(shape(reduce.inputs[0]).rank());
    const Ints axes = reduce.attributes.ints("axes", {});
    return axes.size() == 1 && (axes[0] == -1 || axes[0] == rank - 1) &&
           reduce.attributes.integer("keepdims", 1) != 0;
  }

  bool is_square_of(ValueId value, ValueId x) const {
    if (const Node* power = only_use(value, "PowScalar")) {
      return power->attributes.real("exponent") == 2 && is_same(power->inputs[0], x);
    }
    const Node* product = only_use(value, "Mul");
    return product && is_same(product->inputs[0], x) && is_same(product->inputs[1], x);
  }

  /// Whether both are one value, or the same difference computed twice.
  bool is_same(ValueId a, ValueId b) const {
    if (a == b) return true;
    const Node* first = producer(a, "Sub");
    const Node* second = producer(b, "Sub");
    return first && second && first->inputs == second->inputs;
  }

  /// x of x - mean(x).
  ValueId centred_input(ValueId value) const {
    const Node* difference = producer(value, "Sub");
    const Node* mean = difference ? producer(difference->inputs[1], "ReduceMean") : nullptr;
    return mean && mean->inputs[0] == difference->inputs[0] && is_over_last_axis(*mean)
               ? mean->inputs[0]
               : ValueId{};
  }

  std::vector<bool> varies_;  // by value
};

/// The vector of `width` numbers by which the only reader of `value` scales or shifts it.
struct Affine {
  int node = -1;
  ValueId vector;
};

Affine affine_reader(const NormMatcher& matcher, ValueId value, std::string_view op,
                     std::int64_t width) {
  const int reader = matcher.only_reader(value, op);
  if (reader < 0) return {};
  const Node& node = matcher.graph().nodes[static_cast<std::size_t>(reader)];
  const ValueId vector = node.inputs[node.inputs[0] == value ? 1 : 0];
  const Shape& shape = matcher.shape(vector);
  // Activations of a single sample have the shape of a vector, too.
  const bool is_of_sample = shape.rank() == matcher.shape(value).rank() && matcher.varies(vector);
  const bool fits = shape.rank() > 0 && shape[shape.rank() - 1] == width &&
                    shape.count() == width && !is_of_sample &&
                    matcher.shape(node.outputs[0]) == matcher.shape(value);
  return fits ? Affine{reader, vector} : Affine{};
}

}  // namespace

int fuse_norms(Graph& graph) {
  const NormMatcher matcher(graph);
  Rewriter rewriter(graph);
  int found = 0;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Norm norm = matcher.of(graph.nodes[n]);
    if (!norm.x) continue;
    const ValueId normal = graph.nodes[n].outputs[0];
    if (graph[norm.x].type != graph[normal].type) continue;
    const Shape shape = graph[normal].type.shape;
    const std::int64_t width = shape[shape.rank() - 1];
    const Affine scale = affine_reader(matcher, normal, "Mul", width);
    Affine shift;
    if (scale.node >= 0 && norm.centred) {
      const ValueId scaled = graph.nodes[static_cast<std::size_t>(scale.node)].outputs[0];
      shift = affine_reader(matcher, scaled, "Add", width);
    }
    const std::size_t last = shift.node >= 0   ? static_cast<std::size_t>(shift.node)
                             : scale.node >= 0 ? static_cast<std::size_t>(scale.node)
                                               : n;
    const ValueId result = graph.nodes[last].outputs[0];
    rewriter.replace(last);
    std::vector<ValueId> inputs = {norm.x};
    if (scale.vector) inputs.push_back(rewriter.reshape(scale.vector, {width}));
    if (shift.vector) inputs.push_back(rewriter.reshape(shift.vector, {width}));
    rewriter.emit(norm.centred ? "LayerNorm" : "RmsNorm", std::move(inputs),
                  {{"axis", std::int64_t{-1}}, {"epsilon", norm.epsilon}}, result);
    ++found;
  }
  rewriter.apply();
  return found;
}

}  // namespace pipetrain
