// Slices that share no element of a tensor and together read at least half of it: x[..., t] for
// every t, halves, x[:, 0::2] and x[:, 1::2]. As one Split, they have one gradient.
#include <algorithm>
#include <map>
#include <tuple>

#include "passes/dependence.h"
#include "passes/graph_match.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

/// The axis along which slices cut x. With a step, (…, n, …) is seen as (…, n / step, step, …), and
/// each slice is one index of the second axis.
struct SlicedAxis {
  ValueId x;
  std::int64_t axis, step;
  bool operator<(const SlicedAxis& other) const {
    return std::tie(x.index, axis, step) < std::tie(other.x.index, other.axis, other.step);
  }
};

struct Piece {
  std::int64_t start, length;
  std::optional<std::size_t> node;  // none: nothing reads it
  std::int64_t end() const { return start + length; }
};

using SlicedAxes = std::map<SlicedAxis, std::vector<Piece>>;

Shape as_split(const SlicedAxis& sliced, const Shape& whole) {
  std::vector<std::int64_t> dims = whole.dims();
  if (sliced.step > 1) {
    dims[static_cast<std::size_t>(sliced.axis)] /= sliced.step;
    dims.insert(dims.begin() + sliced.axis + 1, sliced.step);
  }
  return Shape(std::move(dims));
}

std::size_t split_axis(const SlicedAxis& sliced) {
  return static_cast<std::size_t>(sliced.axis) + (sliced.step > 1 ? 1 : 0);
}

class SliceMatcher : public Matcher {
 public:
  explicit SliceMatcher(const Graph& graph)
      : Matcher(graph),
        varies_(depending_on(graph, Role::kInput)),
        is_trained_(depending_on(graph, Role::kParameter)) {}

  /// Two or more slices of an activation with a gradient that read at least half of an axis, no
  /// element twice; in order and with the gaps.
  SlicedAxes sliced_axes() const {
    SlicedAxes slices;
    for (std::size_t n = 0; n < graph().nodes.size(); ++n) {
      const Node& node = graph().nodes[n];
      if (node.op->name == "Slice") add_slice(node, n, slices);
      if (node.op->name == "Gather") add_index(node, n, slices);
    }
    SlicedAxes out;
    for (auto& [axis, pieces] : slices) {
      if (pieces.size() < 2) continue;
      std::vector<Piece> all = with_gaps(axis, std::move(pieces));
      if (!all.empty()) out[axis] = std::move(all);
    }
    return out;
  }

 private:
  bool is_candidate(ValueId x) const {
    const auto at = static_cast<std::size_t>(x.index);
    return varies_[at] && is_trained_[at] && is_float(graph()[x].type.dtype);
  }

  void add_slice(const Node& node, std::size_t n, SlicedAxes& to) const {
    const Ints axes = node.attributes.ints("axes");
    if (axes.size() != 1 || !is_candidate(node.inputs[0])) return;
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
  void add_index(const Node& node, std::size_t n, SlicedAxes& to) const {
    const auto index = scalar(node.inputs[1]);
    if (!index || !is_candidate(node.inputs[0])) return;
    const Shape& whole = shape(node.inputs[0]);
    std::int64_t axis = node.attributes.integer("axis", 0);
    if (axis < 0) axis += static_cast<std::int64_t>(whole.rank());
    auto start = static_cast<std::int64_t>(*index);
    if (start < 0) start += whole[static_cast<std::size_t>(axis)];
    to[{node.inputs[0], axis, 1}].push_back({start, 1, n});
  }

  std::vector<Piece> with_gaps(const SlicedAxis& sliced, std::vector<Piece> pieces) const {
    std::ranges::sort(pieces, {}, &Piece::start);
    const std::int64_t size = as_split(sliced, shape(sliced.x))[split_axis(sliced)];
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

  std::vector<bool> varies_;      // with the data
  std::vector<bool> is_trained_;  // depends on trained tensors
};

/// One Split where the first of the slices was. Those that have another shape become views.
void split(Graph& graph, const SlicedAxis& sliced, const std::vector<Piece>& pieces,
           Rewriter& rewriter) {
  const Shape whole = as_split(sliced, graph[sliced.x].type.shape);
  const std::size_t axis = split_axis(sliced);
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
      rewriter.emit_all("Split", {rewriter.reshape(sliced.x, whole)},
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
  const SlicedAxes found = SliceMatcher(graph).sliced_axes();
  Rewriter rewriter(graph);
  for (const auto& [axis, pieces] : found) split(graph, axis, pieces, rewriter);
  rewriter.apply();
  return static_cast<int>(found.size());
}

}  // namespace pipetrain
