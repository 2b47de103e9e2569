// Rotary position embedding as Llama's exports write it before opset 23.
#include "passes/graph_match.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

/// x and its tables (…, T, D), of which both halves are equal.
struct Rotation {
  ValueId x;
  ValueId cosine, sine;
};

class RotaryMatcher : public Matcher {
 public:
  using Matcher::Matcher;

  /// x cos + concat(-x[half:], x[:half]) sin; no x: none.
  Rotation of(const Node& add) const {
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const Node* plain = only_use(add.inputs[slot], "Mul");
      const Node* turned = only_use(add.inputs[1 - slot], "Mul");
      if (!plain || !turned) return {};
      for (const std::size_t left : {std::size_t{0}, std::size_t{1}}) {
        const ValueId x = turned_input(turned->inputs[left]);
        const ValueId sine = turned->inputs[1 - left];
        if (!x || !is_table(sine, x)) continue;
        for (const std::size_t right : {std::size_t{0}, std::size_t{1}}) {
          const ValueId cosine = plain->inputs[1 - right];
          if (plain->inputs[right] == x && is_table(cosine, x)) return {x, cosine, sine};
        }
      }
    }
    return {};
  }

 private:
  /// x of concat(-x[half:], x[:half]) along the last axis.
  ValueId turned_input(ValueId value) const {
    const Node* concat = only_use(value, "Concat");
    if (!concat || concat->inputs.size() != 2) return {};
    const Node* negative = only_use(concat->inputs[0], "Neg");
    const Node* second = negative ? only_use(negative->inputs[0], "Slice") : nullptr;
    const Node* first = only_use(concat->inputs[1], "Slice");
    if (!first || !second || first->inputs[0] != second->inputs[0]) return {};
    const Shape& all = shape(first->inputs[0]);
    if (all.rank() != 4 || all[3] % 2 != 0) return {};
    const std::int64_t axis = concat->attributes.integer("axis");
    const bool fits = (axis == 3 || axis == -1) && is_part(*first, 0, all[3] / 2) &&
                      is_part(*second, all[3] / 2, all[3]);
    return fits ? first->inputs[0] : ValueId{};
  }

  static bool is_part(const Node& slice, std::int64_t begin, std::int64_t end) {
    const Attributes& a = slice.attributes;
    return a.ints("starts") == Ints{begin} && a.ints("ends") == Ints{end} &&
           (a.ints("axes") == Ints{3} || a.ints("axes") == Ints{-1}) && a.ints("steps") == Ints{1};
  }

  /// Whether a constant (B or 1, 1, T, D), or with fewer axes, has equal halves.
  bool is_table(ValueId value, ValueId x) const {
    const Value& table = graph()[value];
    const Shape& of_x = shape(x);
    const Shape& s = table.type.shape;
    const std::size_t rank = s.rank();
    if (table.role != Role::kConstant || !table.data || rank < 2 || rank > 4 ||
        s[rank - 1] != of_x[3] || s[rank - 2] != of_x[2] || (rank > 2 && s[rank - 3] != 1) ||
        (rank > 3 && s[0] != 1 && s[0] != of_x[0])) {
      return false;
    }
    const std::vector<double> values = table.data.to_doubles();
    const auto width = static_cast<std::size_t>(of_x[3]);
    for (std::size_t row = 0; row < values.size(); row += width) {
      for (std::size_t i = 0; i < width / 2; ++i) {
        if (values[row + i] != values[row + width / 2 + i]) return false;
      }
    }
    return true;
  }
};

/// The first halves of a table's rows, (B or 1, T, D / 2).
HostTensor halved(const Value& table) {
  const Shape& s = table.type.shape;
  const std::size_t rank = s.rank();
  const std::int64_t width = s[rank - 1], steps = s[rank - 2];
  const std::int64_t samples = rank == 4 ? s[0] : 1;
  HostTensor out(TensorType{table.type.dtype, {samples, steps, width / 2}});
  const std::span<const float> from = table.data.span<const float>();
  for (std::int64_t row = 0; row < samples * steps; ++row) {
    for (std::int64_t i = 0; i < width / 2; ++i) {
      out.span<float>()[static_cast<std::size_t>(row * (width / 2) + i)] =
          from[static_cast<std::size_t>(row * width + i)];
    }
  }
  return out;
}

}  // namespace

int fuse_rotary(Graph& graph) {
  const RotaryMatcher matcher(graph);
  std::vector<std::pair<std::size_t, Rotation>> found;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->name != "Add") continue;
    const Rotation rotation = matcher.of(node);
    if (rotation.x && graph[rotation.x].type == graph[node.outputs[0]].type &&
        graph[rotation.x].type.dtype == DType::kFloat32) {
      found.emplace_back(n, rotation);
    }
  }
  Rewriter rewriter(graph);
  std::map<ValueId, ValueId> tables;  // networks use one pair everywhere
  const auto table_of = [&](ValueId full) {
    const auto [entry, added] = tables.try_emplace(full);
    if (added) entry->second = rewriter.constant(halved(graph[full]));
    return entry->second;
  };
  for (const auto& [n, rotation] : found) {
    const ValueId cosine = table_of(rotation.cosine), sine = table_of(rotation.sine);
    const ValueId result = graph.nodes[n].outputs[0];
    rewriter.replace(n);
    // Heads that were split off the rows are turned there, and attention reads them there.
    const ValueId split = rewriter.transposed_input(rotation.x, {0, 2, 1, 3});
    if (!split) {
      rewriter.emit("Rotary", {rotation.x, cosine, sine}, {}, result);
      continue;
    }
    const Shape shape = graph[split].type.shape;  // (B, T, H, D)
    const ValueId rows = rewriter.reshape(split, {shape[0], shape[1], shape[2] * shape[3]});
    const ValueId turned = rewriter.emit("Rotary", {rows, cosine, sine}, {{"heads", shape[2]}})[0];
    rewriter.emit("Transpose", {rewriter.reshape(turned, shape)}, {{"perm", Ints{0, 2, 1, 3}}},
                  result);
  }
  rewriter.apply();
  return static_cast<int>(found.size());
}

}  // namespace pipetrain
