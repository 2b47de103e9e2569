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

/// What slices have in common that may cover a tensor: elements `start`, `start + step`, … of an
/// axis.
struct Cover {
  ValueId x;
  std::int64_t axis, step;
  bool operator<(const Cover& other) const {
    return std::tie(x.index, axis, step) < std::tie(other.x.index, other.axis, other.step);
  }
};

struct Piece {
  std::int64_t start, length;
  std::size_t node;
};

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

  /// All slices of activations that cover an axis, each element once, by where they begin.
  std::map<Cover, std::vector<Piece>> covers() const {
    std::map<Cover, std::vector<Piece>> found;
    for (std::size_t n = 0; n < graph().nodes.size(); ++n) {
      const Node& node = graph().nodes[n];
      if (node.op->name == "Slice") add_slice(node, n, found);
      if (node.op->name == "Gather") add_index(node, n, found);
    }
    for (auto& [cover, pieces] : found) std::ranges::sort(pieces, {}, &Piece::start);
    std::erase_if(found, [&](const auto& entry) { return !covers(entry.first, entry.second); });
    return found;
  }

 private:
  bool varies(ValueId id) const { return id && varies_[static_cast<std::size_t>(id.index)]; }
  bool is_activation(ValueId x) const { return varies(x) && is_float(graph()[x].type.dtype); }

  void add_slice(const Node& node, std::size_t n, std::map<Cover, std::vector<Piece>>& to) const {
    const Ints axes = node.attributes.ints("axes");
    if (axes.size() != 1 || !is_activation(node.inputs[0])) return;
    const std::int64_t step = node.attributes.ints("steps")[0];
    if (step < 1) return;
    const std::int64_t length = shape(node.outputs[0])[static_cast<std::size_t>(axes[0])];
    to[{node.inputs[0], axes[0], step}].push_back({node.attributes.ints("starts")[0], length, n});
  }

  /// An index that is known, which leaves the axis out or one element of it.
  void add_index(const Node& node, std::size_t n, std::map<Cover, std::vector<Piece>>& to) const {
    const auto index = scalar(node.inputs[1]);
    if (!index || !is_activation(node.inputs[0])) return;
    const Shape& whole = shape(node.inputs[0]);
    std::int64_t axis = node.attributes.integer("axis", 0);
    if (axis < 0) axis += static_cast<std::int64_t>(whole.rank());
    auto start = static_cast<std::int64_t>(*index);
    if (start < 0) start += whole[static_cast<std::size_t>(axis)];
    to[{node.inputs[0], axis, 1}].push_back({start, 1, n});
  }

  bool covers(const Cover& cover, const std::vector<Piece>& pieces) const {
    if (pieces.size() < 2) return false;
    const std::int64_t size = shape(cover.x)[static_cast<std::size_t>(cover.axis)];
    std::int64_t next = 0;
    for (const Piece& piece : pieces) {
      if (piece.start != next || (cover.step > 1 && piece.length * cover.step != size))
        return false;
      next += cover.step > 1 ? 1 : piece.length;
    }
    return next == (cover.step > 1 ? cover.step : size);
  }

  std::vector<bool> varies_;  // with the data
};

/// One Split where the first of the pieces was. Those that have another shape become views.
void split(Graph& graph, const Cover& cover, const std::vector<Piece>& pieces, Rewriter& rewriter) {
  const auto axis = static_cast<std::size_t>(cover.axis);
  const Shape whole = graph[cover.x].type.shape;
  std::vector<std::int64_t> dims = whole.dims();
  std::size_t split_axis = axis;
  if (cover.step > 1) {  // (…, n, …) as (…, n / step, step, …)
    dims[axis] /= cover.step;
    dims.insert(dims.begin() + cover.axis + 1, cover.step);
    ++split_axis;
  }
  Ints sizes;
  std::vector<ValueId> results;
  for (const Piece& piece : pieces) {
    sizes.push_back(cover.step > 1 ? 1 : piece.length);
    const ValueId result = graph.nodes[piece.node].outputs[0];
    std::vector<std::int64_t> part = dims;
    part[split_axis] = sizes.back();
    results.push_back(graph[result].type.shape == Shape(part) ? result : ValueId{});
  }
  rewriter.replace(std::ranges::min(pieces, {}, &Piece::node).node);
  const std::vector<ValueId> parts = rewriter.emit_all(
      "Split", {rewriter.reshape(cover.x, Shape(dims))},
      {{"axis", static_cast<std::int64_t>(split_axis)}, {"sizes", sizes}}, results);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    rewriter.replace(pieces[i].node);
    if (results[i]) continue;
    const ValueId result = graph.nodes[pieces[i].node].outputs[0];
    rewriter.reshape_into(parts[i], Shape(graph[result].type.shape), result);
  }
}

}  // namespace

int join_slices(Graph& graph) {
  const std::map<Cover, std::vector<Piece>> found = SliceMatcher(graph).covers();
  Rewriter rewriter(graph);
  for (const auto& [cover, pieces] : found) split(graph, cover, pieces, rewriter);
  rewriter.apply();
  return static_cast<int>(found.size());
}

}  // namespace pipetrain
