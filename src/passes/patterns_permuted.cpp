// Weights whose blocks of rows are put into another order, as PyTorch's export of an LSTM does with
// its gates.
#include <algorithm>

#include "passes/graph_match.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

/// The rows [begin, end) of a weight that a Slice takes.
struct Rows {
  std::int64_t begin, end;
};

/// A weight and the order in which its slices along an axis are joined.
struct Permuted {
  ValueId weight;
  std::int64_t axis;
  std::vector<Rows> parts;
};

class PermutedMatcher : public Matcher {
 public:
  using Matcher::Matcher;

  /// What a Concat joins, if it is all slices of one weight, each once; no weight: something else.
  Permuted of(const Node& concat) const {
    if (concat.inputs.size() < 2) return {};
    Permuted found;
    for (const ValueId input : concat.inputs) {
      const Node* slice = only_use(input, "Slice");
      if (!slice || graph()[slice->inputs[0]].role != Role::kParameter) return {};
      if (found.weight && slice->inputs[0] != found.weight) return {};
      found.weight = slice->inputs[0];
      const Shape& all = shape(found.weight);
      found.axis = concat.attributes.integer("axis");
      if (found.axis < 0) found.axis += static_cast<std::int64_t>(all.rank());
      const Rows rows = rows_of(*slice, all, found.axis);
      if (rows.begin >= rows.end) return {};
      found.parts.push_back(rows);
    }
    return covers(found) ? found : Permuted{};
  }

 private:
  /// Of a slice along `axis` alone; otherwise none.
  static Rows rows_of(const Node& slice, const Shape& all, std::int64_t axis) {
    const Ints& axes = slice.attributes.ints("axes");
    const auto rank = static_cast<std::int64_t>(all.rank());
    if (axes.size() != 1 || (axes[0] < 0 ? axes[0] + rank : axes[0]) != axis ||
        slice.attributes.ints("steps") != Ints{1}) {
      return {};
    }
    return {slice.attributes.ints("starts")[0], slice.attributes.ints("ends")[0]};
  }

  bool covers(const Permuted& found) const {
    std::vector<Rows> parts = found.parts;
    std::ranges::sort(parts, {}, &Rows::begin);
    std::int64_t end = 0;
    for (const Rows& rows : parts) {
      if (rows.begin != end) return false;
      end = rows.end;
    }
    return end == shape(found.weight)[static_cast<std::size_t>(found.axis)];
  }
};

HostTensor indices_of(const Permuted& permuted) {
  std::vector<std::int64_t> indices;
  for (const Rows& rows : permuted.parts) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) indices.push_back(row);
  }
  HostTensor out(TensorType{DType::kInt64, {static_cast<std::int64_t>(indices.size())}});
  std::ranges::copy(indices, out.span<std::int64_t>().begin());
  return out;
}

}  // namespace

int fuse_permuted_weights(Graph& graph) {
  const PermutedMatcher matcher(graph);
  std::vector<std::pair<std::size_t, Permuted>> found;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op->name != "Concat") continue;
    Permuted permuted = matcher.of(graph.nodes[n]);
    if (permuted.weight) found.emplace_back(n, std::move(permuted));
  }
  Rewriter rewriter(graph);
  for (const auto& [n, permuted] : found) {
    const ValueId result = graph.nodes[n].outputs[0];
    rewriter.replace(n);
    rewriter.emit("Gather", {permuted.weight, rewriter.constant(indices_of(permuted))},
                  {{"axis", permuted.axis}}, result);
  }
  rewriter.apply();
  return static_cast<int>(found.size());
}

}  // namespace pipetrain
