// Attention as exporters before opset 23 write it.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "passes/graph_match.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

// e to it is zero beside any other score.
constexpr double kHidden = -1e4;

/// What the scores of an attention are made of.
struct Scores {
  ValueId q, k;  // k: (…, S, D), or (…, D, S) when turned
  bool turned = false;
  double scale = 1;
  ValueId mask;           // added, or true where a key is seen; absent: none
  bool inverted = false;  // true where a key is hidden
};

class AttentionMatcher : public Matcher {
 public:
  using Matcher::Matcher;

  /// The scores whose softmax is `shares`, with or without a guard against rows without keys.
  std::optional<Scores> of_shares(ValueId shares) const {
    if (uses(shares) != 1) return {};
    ValueId value = shares;
    const bool guarded = peel_guard(value);
    const Node* softmax = producer(value, "Softmax");
    if (!softmax || uses(value) != (guarded ? 2 : 1)) return {};
    const std::int64_t rank = static_cast<std::int64_t>(shape(value).rank());
    const std::int64_t axis = softmax->attributes.integer("axis", -1);
    if ((rank != 3 && rank != 4) || (axis != -1 && axis != rank - 1)) return {};
    Scores out;
    if (!read(softmax->inputs[0], guarded, out)) return {};
    return out;
  }

  /// `value` without factors that are constant numbers; `scale` takes them.
  ValueId without_factors(ValueId value, double& scale) const {
    for (;;) {
      const ValueId inner = factor(value, scale);
      if (!inner) return value;
      value = inner;
    }
  }

  /// The matrix whose last two axes are swapped in `value`, if that is how it was made; reshapes
  /// that only put the leading axes together may stand around the Transpose.
  ValueId untransposed(ValueId value) const {
    const Node* transpose = producer(value, "Transpose");
    if (is_transpose(transpose, {0, 1, 3, 2}) || is_transpose(transpose, {0, 2, 1})) {
      return transpose->inputs[0];
    }
    const Node* outer = producer(value, "Reshape");
    transpose = outer ? producer(outer->inputs[0], "Transpose") : nullptr;
    const Node* inner =
        is_transpose(transpose, {0, 2, 1}) ? producer(transpose->inputs[0], "Reshape") : nullptr;
    if (!inner) return {};
    const Shape& from = shape(inner->inputs[0]);
    const Shape& to = shape(value);
    const bool same = from.rank() == 4 && to.rank() == 4 && from[0] == to[0] && from[1] == to[1] &&
                      from[2] == to[3] && from[3] == to[2] &&
                      shape(transpose->inputs[0]) == (Shape{from[0] * from[1], from[2], from[3]});
    return same ? inner->inputs[0] : ValueId{};
  }

  /// (B, G, S, D) when `value` (B, G r, S, D) repeats each of its heads r times.
  ValueId unrepeated(ValueId value) const {
    const Node* outer = producer(value, "Reshape");
    const Node* expand = outer ? producer(outer->inputs[0], "Expand") : nullptr;
    const Node* inner = expand ? producer(expand->inputs[0], "Reshape") : nullptr;
    if (!inner || shape(value).rank() != 4) return {};
    const Shape& x = shape(inner->inputs[0]);
    const Shape& one = shape(expand->inputs[0]);
    const Shape& many = shape(outer->inputs[0]);
    if (x.rank() != 4 || one != (Shape{x[0], x[1], 1, x[2], x[3]}) || many.rank() != 5) return {};
    const bool repeats = many == (Shape{x[0], x[1], many[2], x[2], x[3]}) &&
                         shape(value) == (Shape{x[0], x[1] * many[2], x[2], x[3]});
    return repeats ? inner->inputs[0] : ValueId{};
  }

 private:
  /// Where(IsNaN(x), 0, x) -> x
  bool peel_guard(ValueId& value) const {
    const Node* where = producer(value, "Where");
    if (!where || !is_zero(where->inputs[1])) return false;
    const Node* test = only_use(where->inputs[0], "IsNaN");
    if (!test || test->inputs[0] != where->inputs[2]) return false;
    value = where->inputs[2];
    return true;
  }

  bool is_zero(ValueId value) const {
    const Value& constant = graph()[value];
    if (constant.role != Role::kConstant) return false;
    const std::vector<double> values = constant.data.to_doubles();
    return std::ranges::all_of(values, [](double x) { return x == 0; });
  }

  /// The other factor of a product or quotient with a number.
  ValueId factor(ValueId value, double& scale) const {
    if (const Node* mul = only_use(value, "Mul")) {
      for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
        const auto number = scalar(mul->inputs[slot]);
        if (!number || shape(mul->inputs[1 - slot]) != shape(value)) continue;
        scale *= *number;
        return mul->inputs[1 - slot];
      }
    }
    if (const Node* div = only_use(value, "Div")) {
      const auto number = scalar(div->inputs[1]);
      if (number && *number != 0 && shape(div->inputs[0]) == shape(value)) {
        scale /= *number;
        return div->inputs[0];
      }
    }
    return {};
  }

  bool read(ValueId scores, bool guarded, Scores& out) const {
    if (const Node* product = only_use(without_factors(scores, out.scale), "MatMul")) {
      if (product->attributes.flag("trans_a") || product->inputs.size() > 2) return false;
      out.q = without_factors(product->inputs[0], out.scale);
      out.k = without_factors(product->inputs[1], out.scale);
      out.turned = !product->attributes.flag("trans_b");
      return out.scale > 0;
    }
    // One mask; what it is added to must not be scaled outside.
    if (out.mask || out.scale != 1) return false;
    if (const Node* add = only_use(scores, "Add")) {
      for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
        if (shape(add->inputs[slot]) != shape(scores)) continue;
        Scores found;
        found.mask = add->inputs[1 - slot];
        if (read_masked(add->inputs[slot], guarded, found)) {
          out = found;
          return true;
        }
      }
      return false;
    }
    const Node* where = only_use(scores, "Where");
    if (!where) return false;
    for (const std::size_t slot : {std::size_t{1}, std::size_t{2}}) {
      const auto hidden = scalar(where->inputs[3 - slot]);
      if (!hidden || *hidden > kHidden || shape(where->inputs[slot]) != shape(scores)) continue;
      // A finite number makes the shares of a row without keys equal; ours are 0.
      if (!std::isinf(*hidden) && !every_row_sees(where->inputs[0], slot == 1)) continue;
      Scores found;
      found.mask = where->inputs[0];
      found.inverted = slot == 2;
      if (read_masked(where->inputs[slot], guarded, found)) {
        out = found;
        return true;
      }
    }
    return false;
  }

  bool read_masked(ValueId scores, bool guarded, Scores& found) const {
    const ValueId mask = found.mask;
    const bool inverted = found.inverted;
    found.mask = {};
    if (!producer(without_factors_of(scores), "MatMul") || !read(scores, guarded, found)) {
      return false;
    }
    found.mask = mask;
    found.inverted = inverted;
    return true;
  }

  ValueId without_factors_of(ValueId value) const {
    double ignored = 1;
    return without_factors(value, ignored);
  }

  /// Whether a constant leaves every query a key.
  bool every_row_sees(ValueId condition, bool seen) const {
    const Value& value = graph()[condition];
    const Shape& extents = value.type.shape;
    if (value.role != Role::kConstant || extents.rank() == 0) return false;
    const std::int64_t width = extents[extents.rank() - 1];
    const bool* flags = value.data.view().as<bool>();
    for (std::int64_t row = 0; row < value.type.count(); row += width) {
      if (std::find(flags + row, flags + row + width, seen) == flags + row + width) return false;
    }
    return true;
  }
};

/// What a constant mask says of (B, H, T, S) scores.
enum class MaskKind { kOther, kNone, kCausal };

MaskKind kind_of(const Value& mask, bool inverted, std::int64_t queries, std::int64_t keys) {
  if (mask.role != Role::kConstant) return MaskKind::kOther;
  const std::vector<double> values = mask.data.to_doubles();
  const bool flags = mask.type.dtype == DType::kBool;
  const auto seen = [&](double x) { return flags ? (x != 0) != inverted : x == 0; };
  const auto hidden = [&](double x) { return flags ? !seen(x) : x <= kHidden; };
  if (std::ranges::all_of(values, seen)) return MaskKind::kNone;
  const Shape& shape = mask.type.shape;
  const std::size_t rank = shape.rank();
  if (queries != keys || rank < 2 || shape[rank - 1] != keys || shape[rank - 2] != queries) {
    return MaskKind::kOther;
  }
  for (std::size_t at = 0; at < values.size(); ++at) {
    const auto column = static_cast<std::int64_t>(at) % keys;
    const auto row = static_cast<std::int64_t>(at) / keys % queries;
    if (!(column <= row ? seen(values[at]) : hidden(values[at]))) return MaskKind::kOther;
  }
  return MaskKind::kCausal;
}

class AttentionFusion {
 public:
  AttentionFusion(Graph& graph, std::span<const ValueId> outputs)
      : graph_(graph), outputs_(outputs), matcher_(graph), rewriter_(graph) {}

  int run() {
    int found = 0;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op->name == "MatMul" && !rewriter_.replaced(n) && fuse(n)) ++found;
    }
    rewriter_.apply();
    return found;
  }

 private:
  /// An operand in the form that Attention reads.
  struct Operand {
    ValueId value;
    std::int64_t heads;
  };

  bool fuse(std::size_t root) {
    const Node& node = graph_.nodes[root];
    if (node.attributes.flag("trans_a") || node.attributes.flag("trans_b") ||
        node.inputs.size() > 2) {
      return false;
    }
    const std::optional<Scores> scores = matcher_.of_shares(node.inputs[0]);
    if (!scores) return false;
    const Shape of_q = graph_[scores->q].type.shape;
    const Shape of_k = graph_[scores->k].type.shape;
    const ValueId v = node.inputs[1];
    const Shape of_v = graph_[v].type.shape;
    const std::size_t rank = of_q.rank();
    if ((rank != 3 && rank != 4) || of_k.rank() != rank || of_v.rank() != rank) return false;
    for (std::size_t axis = 0; axis + 2 < rank; ++axis) {  // no broadcasting of samples or heads
      if (of_q[axis] != of_k[axis] || of_q[axis] != of_v[axis]) return false;
    }
    const ValueId result = node.outputs[0];
    // The Transpose that puts the heads beside each other again goes into the operator, and then
    // nothing computes `result` any more.
    const bool is_output = std::ranges::find(outputs_, result) != outputs_.end();
    const int merge = rank == 4 && !is_output ? matcher_.only_reader(result, "Transpose") : -1;
    const bool merges =
        merge >= 0 &&
        matcher_.is_transpose(&graph_.nodes[static_cast<std::size_t>(merge)], {0, 2, 1, 3});
    rewriter_.replace(root);
    const ValueId k = straightened(*scores);
    ValueId shared_k, shared_v;
    if (rank == 4) {
      shared_k = matcher_.unrepeated(k);
      shared_v = matcher_.unrepeated(v);
      if (!shared_k || !shared_v ||
          graph_[shared_k].type.shape[1] != graph_[shared_v].type.shape[1]) {
        shared_k = shared_v = {};
      }
    }
    double scale = scores->scale;
    const Operand q_in = operand(scores->q, &scale);
    const Operand k_in = operand(shared_k ? shared_k : k, &scale);
    const Operand v_in = operand(shared_v ? shared_v : v);
    Attributes attributes = {{"heads", q_in.heads},
                             {"key_heads", k_in.heads},
                             {"scale", scale},
                             {"y_rows", std::int64_t{merges}}};
    std::vector<ValueId> inputs = {q_in.value, k_in.value, v_in.value};
    const std::int64_t queries = of_q[rank - 2], keys = of_v[rank - 2];
    if (scores->mask) add_mask(*scores, rank, queries, keys, inputs, attributes);
    if (!merges) {
      if (rank == 4) {
        rewriter_.emit("Attention", std::move(inputs), std::move(attributes), result);
      } else {
        const ValueId y = rewriter_.emit("Attention", std::move(inputs), std::move(attributes))[0];
        rewriter_.reshape_into(y, graph_[result].type.shape, result);
      }
      return true;
    }
    const ValueId y = rewriter_.emit("Attention", std::move(inputs), std::move(attributes))[0];
    const ValueId merged = graph_.nodes[static_cast<std::size_t>(merge)].outputs[0];
    rewriter_.replace(static_cast<std::size_t>(merge));
    rewriter_.reshape_into(y, graph_[merged].type.shape, merged);
    return true;
  }

  /// k as (…, S, D).
  ValueId straightened(const Scores& scores) {
    if (!scores.turned) return scores.k;
    if (const ValueId k = matcher_.untransposed(scores.k)) return k;
    const std::size_t rank = graph_[scores.k].type.shape.rank();
    const Node* split = matcher_.producer(scores.k, "Transpose");
    if (rank == 4 && matcher_.is_transpose(split, {0, 2, 3, 1})) {
      return rewriter_.emit("Transpose", {split->inputs[0]}, {{"perm", Ints{0, 2, 1, 3}}})[0];
    }
    const Ints perm = rank == 4 ? Ints{0, 1, 3, 2} : Ints{0, 2, 1};
    return rewriter_.emit("Transpose", {scores.k}, {{"perm", perm}})[0];
  }

  /// (B, H, T, D), or the rows (B, T, H D) that it was split from; 3 axes become one head. `scale`
  /// takes a positive number by which the rows were multiplied.
  Operand operand(ValueId x, double* scale = nullptr) {
    const Shape shape = graph_[x].type.shape;
    if (shape.rank() == 3) return {rewriter_.reshape(x, {shape[0], 1, shape[1], shape[2]}), 1};
    ValueId split = split_input(x);
    if (!split) return {x, shape[1]};
    if (const Node* rows = scale ? matcher_.producer(split, "Reshape") : nullptr) {
      double factor = 1;
      const ValueId unscaled = matcher_.without_factors(rows->inputs[0], factor);
      if (unscaled != rows->inputs[0] && factor > 0) {
        split = unscaled;
        *scale *= factor;
      }
    }
    return {rewriter_.reshape(split, {shape[0], shape[2], shape[1] * shape[3]}), shape[1]};
  }

  /// (B, T, H, D) of which `x` is the Transpose, also of one that was emitted just now.
  ValueId split_input(ValueId x) { return rewriter_.transposed_input(x, {0, 2, 1, 3}); }

  /// All layers of a network have one mask, of as many numbers as there are pairs of tokens.
  MaskKind kind_of_mask(const Scores& scores, std::int64_t queries, std::int64_t keys) {
    const auto [known, added] = mask_kinds_.try_emplace(
        {scores.mask.index, scores.inverted, queries, keys}, MaskKind::kOther);
    if (added) known->second = kind_of(graph_[scores.mask], scores.inverted, queries, keys);
    return known->second;
  }

  void add_mask(const Scores& scores, std::size_t rank, std::int64_t queries, std::int64_t keys,
                std::vector<ValueId>& inputs, Attributes& attributes) {
    switch (kind_of_mask(scores, queries, keys)) {
      case MaskKind::kNone:
        return;
      case MaskKind::kCausal:
        attributes.set("causal", std::int64_t{1});
        return;
      case MaskKind::kOther:
        break;
    }
    ValueId mask = scores.mask;
    if (scores.inverted) mask = rewriter_.emit("Not", {mask}, {})[0];
    Shape shape = graph_[mask].type.shape;
    if (rank == 3 && shape.rank() == 3) {  // samples first, one head
      mask = rewriter_.reshape(mask, {shape[0], 1, shape[1], shape[2]});
    }
    inputs.push_back(mask);
  }

  Graph& graph_;
  std::span<const ValueId> outputs_;
  AttentionMatcher matcher_;
  Rewriter rewriter_;
  std::map<std::tuple<int, bool, std::int64_t, std::int64_t>, MaskKind> mask_kinds_;
};

}  // namespace

int fuse_attention(Graph& graph, std::span<const ValueId> outputs) {
  return AttentionFusion(graph, outputs).run();
}

}  // namespace pipetrain
