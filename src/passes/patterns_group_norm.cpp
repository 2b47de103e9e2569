// Group normalization: as exporters write it before opset 21, and as devices without kernels for it
// run it.
#include <algorithm>

#include "passes/graph_match.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

class GroupNormMatcher : public Matcher {
 public:
  using Matcher::Matcher;

  /// The Reshape to (N, groups, …) that `node` normalizes group by group, neither scaled nor
  /// shifted; null: it is something else.
  const Node* grouping(const Node& node) const {
    if (node.op->name != "GroupNorm" || !is_all(node.inputs[1], 1) || !is_all(node.inputs[2], 0))
      return nullptr;
    const Node* reshape = only_use(node.inputs[0], "Reshape");
    if (!reshape) return nullptr;
    const Shape &x = shape(reshape->inputs[0]), &grouped = shape(node.inputs[0]);
    const std::int64_t groups = node.attributes.integer("groups");
    const bool fits =
        x.rank() >= 2 && x[0] == grouped[0] && grouped[1] == groups && x[1] % groups == 0;
    return fits ? reshape : nullptr;
  }

  /// The number per channel by which the only reader of `value`, an `op`, scales or shifts it.
  struct Affine {
    int node = -1;
    ValueId numbers;
  };
  Affine affine_reader(ValueId value, std::string_view op) const {
    const int reader = only_reader(value, op);
    if (reader < 0) return {};
    const Node& node = graph().nodes[static_cast<std::size_t>(reader)];
    const ValueId numbers = node.inputs[node.inputs[0] == value ? 1 : 0];
    const Shape &x = shape(value), &given = shape(numbers);
    // Without an axis of samples: no activations of a single one.
    const bool fits = given.rank() + 1 == x.rank() && given.count() == x[1] && given[0] == x[1];
    return fits ? Affine{reader, numbers} : Affine{};
  }

 private:
  bool is_all(ValueId value, double number) const {
    if (graph()[value].role != Role::kConstant) return false;
    const std::vector<double> numbers = graph()[value].data.to_doubles();
    return std::ranges::all_of(numbers, [&](double found) { return found == number; });
  }
};

HostTensor numbers_of(const TensorType& type, float number) {
  HostTensor out(type);
  std::ranges::fill(out.span<float>(), number);
  return out;
}

}  // namespace

int fuse_group_norms(Graph& graph) {
  const GroupNormMatcher matcher(graph);
  Rewriter rewriter(graph);
  int found = 0;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node node = graph.nodes[n];
    const Node* grouping = matcher.grouping(node);
    const int back = grouping ? matcher.only_reader(node.outputs[0], "Reshape") : -1;
    if (back < 0) continue;
    const ValueId x = grouping->inputs[0];
    const TensorType type = graph[x].type;
    ValueId result = graph.nodes[static_cast<std::size_t>(back)].outputs[0];
    if (graph[result].type != type || type.dtype != DType::kFloat32) continue;
    int last = back;
    const auto take = [&](std::string_view op) {
      const auto affine = matcher.affine_reader(result, op);
      if (affine.node < 0) return ValueId{};
      last = affine.node;
      result = graph.nodes[static_cast<std::size_t>(last)].outputs[0];
      return affine.numbers;
    };
    const ValueId scale = take("Mul"), bias = take("Add");
    if (rewriter.replaced(static_cast<std::size_t>(last))) continue;
    rewriter.replace(static_cast<std::size_t>(last));
    const Shape channels{type.shape[1]};
    const auto per_channel = [&](ValueId numbers, float otherwise) {
      return numbers ? rewriter.reshape(numbers, channels)
                     : rewriter.constant(numbers_of({type.dtype, channels}, otherwise));
    };
    rewriter.emit("GroupNorm", {x, per_channel(scale, 1), per_channel(bias, 0)}, node.attributes,
                  result);
    ++found;
  }
  rewriter.apply();
  return found;
}

int expand_group_norms(Graph& graph) {
  Rewriter rewriter(graph);
  int found = 0;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op->name != "GroupNorm") continue;
    const Node node = graph.nodes[n];
    const Shape shape = graph[node.inputs[0]].type.shape;
    const std::int64_t samples = shape[0], channels = shape[1],
                       groups = node.attributes.integer("groups");
    const std::int64_t positions = shape.count(2, shape.rank());
    rewriter.replace(n);
    const ValueId rows =
        rewriter.reshape(node.inputs[0], {samples * groups, channels / groups * positions});
    const Attributes attributes{{"axis", std::int64_t{1}},
                                {"epsilon", node.attributes.real("epsilon", 1e-5)}};
    ValueId y = rewriter.emit("LayerNorm", {rows}, attributes)[0];
    y = rewriter.reshape(y, {samples, channels, positions});
    y = rewriter.emit("Mul", {y, rewriter.reshape(node.inputs[1], {channels, 1})}, {})[0];
    y = rewriter.emit("Add", {y, rewriter.reshape(node.inputs[2], {channels, 1})}, {})[0];
    rewriter.reshape_into(y, shape, node.outputs[0]);
    ++found;
  }
  rewriter.apply();
  return found;
}

}  // namespace pipetrain
