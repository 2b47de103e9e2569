// Slices that together read a tensor once: x[..., t] for every t, halves, x[:, 0::2] and x[:,
// 1::2].
#include <algorithm>
#include <map>
#include <tuple>

#include "passes/graph_match.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

/// An axis that slices read in turn. With a step, (…, n, …) is seen as (…, n / step, step, …), and
/// each slice is one index of the second axis.
struct Cover {
  ValueId x;
  std::int64_t axis, step;
  bool operator<(const Cover& other) const {
    return std::tie(x.index, axis, step) < std::tie(other.x.index, other.axis, other.step);
  }
};

struct Piece {
  std::int64_t start, length;
  std::optional<std::size_t> node;  // none: nothing reads it
  std::int64_t end() const { return start + length; }
};

using Covers = std::map<Cover, std::vector<Piece>>;

Shape as_split(const Cover& cover, const Shape& whole) {
  std::vector<std::int64_t> dims = whole.dims();
  if (cover.step > 1) {
    dims[static_cast<std::size_t>(cover.axis)] /= cover.step;
    dims.insert(dims.begin() + cover.axis + 1, cover.step);
  }
  return Shape(std::move(dims));
}

std::size_t split_axis(const Cover& cover) {
  return static_cast<std::size_t>(cover.axis) + (cover.step > 1 ? 1 : 0);
}

class SliceMatcher : public Matcher {
 public:
  explicit SliceMatcher(const Graph& graph) : Matcher(graph), varies_(graph.values.size(), false) {
    for (std::size_t v = 0; v < varies_.size(); ++v)
      varies_[v] = graph.values[v].role == Role::kInput;
    for (const Node& node : graph.nodes) {
      const bool any = std::ranges::any_of(node.inputs, [&](ValueId id) { return varies(id); });
      for (const ValueId id : node.outputs) {
        if (id) varies_[static_cast<std::size_t>(id.index)] = any;
      }
    }
  }

  /// Two or more slices of an activation that read at least half of an axis, no element twice; in
  /// order and with the gaps.
  Covers covers() const {
    Covers slices;
    for (std::size_t n = 0; n < graph().nodes.size(); ++n) {
      const Node& node = graph().nodes[n];
      if (node.op->name == "Slice") add_slice(node, n, slices);
      if (node.op->name == "Gather") add_index(node, n, slices);
    }
    Covers out;
    for (auto& [cover, pieces] : slices) {
      if (pieces.size() < 2) continue;
      std::vector<Piece> all = with_gaps(cover, std::move(pieces));
      if (!all.empty()) out[cover] = std::move(all);
    }
    return out;
  }

 private:
  bool varies(ValueId id) const { return id && varies_[static_cast<std::size_t>(id.index)]; }
  bool is_activation(ValueId x) const { return varies(x) && is_float(graph()[x].type.dtype); }

  void add_slice(const Node& node, std::size_t n, Covers& to) const {
    const Ints axes = node.attributes.ints("axes");
    if (axes.size() != 1 || !is_activation(node.inputs[0])) return;
    const auto axis = static_cast<std::size_t>(axes[0]);
    const std::int64_t step = node.attributes.ints("steps")[0];
    const std::int64_t start = node.attributes.ints("starts")[0];
    std::int64_t length = shape(node.outputs[0])[axis];
    if (step < 1 || length == 0) return;
    if (step > 1) {
      if (length * step != shape(node.inputs[0])[axis] || start >= step) return;
      length = 1;
    }
    to[{node.inputs[0], axes[0], step}].push_back({start, length, n});
  }

  /// An index that is known, which leaves the axis out or one element of it.
  void add_index(const Node& node, std::size_t n, Covers& to) const {
    const auto index = scalar(node.inputs[1]);
    if (!index || !is_activation(node.inputs[0])) return;
    const Shape& whole = shape(node.inputs[0]);
    std::int64_t axis = node.attributes.integer("axis", 0);
    if (axis < 0) axis += static_cast<std::int64_t>(whole.rank());
    auto start = static_cast<std::int64_t>(*index);
    if (start < 0) start += whole[static_cast<std::size_t>(axis)];
    to[{node.inputs[0], axis, 1}].push_back({start, 1, n});
  }

  std::vector<Piece> with_gaps(const Cover& cover, std::vector<Piece> pieces) const {
    std::ranges::sort(pieces, {}, &Piece::start);
    const std::int64_t size = as_split(cover, shape(cover.x))[split_axis(cover)];
    pieces.push_back({size, 0, {}});  // the end
    std::vector<Piece> all;
    std::int64_t read = 0;
    std::int64_t end = 0;
    for (const Piece& piece : pieces) {
      if (piece.start < end) return {};
      if (piece.start > end) all.push_back({end, piece.start - end, {}});
      if (piece.node) all.push_back(piece);
      read += piece.length;
      end = piece.end();
    }
    return 2 * read >= size ? all : std::vector<Piece>{};
  }

  std::vector<bool> varies_;  // with the data
};

/// One Split where the first of the slices was. Those that have another shape become views.
void split(Graph& graph, const Cover& cover, const std::vector<Piece>& pieces, Rewriter& rewriter) {
  const Shape whole = as_split(cover, graph[cover.x].type.shape);
  const std::size_t axis = split_axis(cover);
  const auto result_of = [&](const Piece& piece) {
    return piece.node ? graph.nodes[*piece.node].outputs[0] : ValueId{};
  };
  std::size_t first = graph.nodes.size();
  Ints sizes;
  std::vector<ValueId> results;
  for (const Piece& piece : pieces) {
    first = std::min(first, piece.node.value_or(first));
    sizes.push_back(piece.length);
    Shape part = whole;
    part[axis] = piece.length;
    const ValueId result = result_of(piece);
    results.push_back(result && graph[result].type.shape == part ? result : ValueId{});
  }
  rewriter.replace(first);
  const std::vector<ValueId> parts =
      rewriter.emit_all("Split", {rewriter.reshape(cover.x, whole)},
                        {{"axis", static_cast<std::int64_t>(axis)}, {"sizes", sizes}}, results);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces[i].node) continue;
    rewriter.replace(*pieces[i].node);
    if (results[i]) continue;
    const ValueId result = result_of(pieces[i]);
    rewriter.reshape_into(parts[i], Shape(graph[result].type.shape), result);
  }
}

}  // namespace

int join_slices(Graph& graph) {
  const Covers found = SliceMatcher(graph).covers();
  Rewriter rewriter(graph);
  for (const auto& [cover, pieces] : found) split(graph, cover, pieces, rewriter);
  rewriter.apply();
  return static_cast<int>(found.size());
}

}  // namespace pipetrain
