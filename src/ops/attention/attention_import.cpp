// The import of Attention: past keys and values are concatenated in front of the new ones, and the
// optional score output is built from separate operators.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "ops/attention/attention.h"

namespace pipetrain::attention {
namespace {

ValueId prefix_of(GraphBuilder& builder, ValueId x, std::int64_t axis, std::int64_t count) {
  return builder.add(
      "Slice", {x},
      {{"starts", Ints{0}}, {"ends", Ints{count}}, {"axes", Ints{axis}}, {"steps", Ints{1}}});
}

class Import {
 public:
  explicit Import(ImportContext& context)
      : context_(context), builder_(context.builder()), attributes_(context.attributes()) {
    rows_ = context.type(0).shape.rank() == 3;
    heads_ = rows_ ? attributes_.integer("q_num_heads", 0) : context.type(0).shape[1];
    key_heads_ = rows_ ? attributes_.integer("kv_num_heads", 0) : context.type(1).shape[1];
    PT_CHECK(heads_ > 0 && key_heads_ > 0, kModel,
             "Attention of inputs with 3 axes needs q_num_heads and kv_num_heads");
  }

  void run() {
    ValueId k = context_.input(1);
    ValueId v = context_.input(2);
    const bool past = context_.has_input(4);
    PT_CHECK(past == context_.has_input(5), kModel,
             "Attention needs both past_key and past_value, or none of them");
    std::int64_t offset = 0;
    if (past) {
      offset = context_.type(4).shape[2];
      k = builder_.add("Concat", {context_.input(4), to_heads(k, key_heads_)},
                       {{"axis", std::int64_t{2}}});
      v = builder_.add("Concat", {context_.input(5), to_heads(v, key_heads_)},
                       {{"axis", std::int64_t{2}}});
    }
    if (context_.output_count() > 1) context_.set_output(1, to_heads(k, key_heads_));
    if (context_.output_count() > 2) context_.set_output(2, to_heads(v, key_heads_));
    ValueId mask = context_.has_input(3) ? context_.input(3) : ValueId{};
    const ValueId all_keys = k;
    if (context_.has_input(6)) {
      lengths_ = builder_.add("Cast", {context_.input(6)},
                              {{"to", static_cast<std::int64_t>(DType::kInt64)}});
    }
    if (mask && lengths_) {  // which may reach beyond a shorter mask, and place the queries
      mask = for_all_keys(mask, k);
    } else if (mask) {  // keys beyond a shorter mask are masked
      const Shape shape = builder_.shape(mask);
      const std::int64_t shown = shape.rank() > 0 ? shape[shape.rank() - 1] : 1;
      const auto shorten = [&](ValueId x) {
        const std::size_t axis = builder_.shape(x).rank() == 4 ? 2 : 1;
        return shown > 1 && shown < builder_.shape(x)[axis]
                   ? prefix_of(builder_, x, static_cast<std::int64_t>(axis), shown)
                   : x;
      };
      k = shorten(k);
      v = shorten(v);
    }
    const std::int64_t head_width = width(context_.input(0), heads_);
    scale_ = attributes_.real("scale", 1 / std::sqrt(static_cast<double>(head_width)));
    softcap_ = attributes_.real("softcap", 0);
    Attributes out = {{"heads", heads_}, {"key_heads", key_heads_}, {"scale", scale_}};
    if (softcap_ > 0) out.set("softcap", softcap_);
    if (attributes_.flag("is_causal")) out.set("causal", std::int64_t{1});
    if (offset > 0) out.set("offset", offset);
    for (const auto& [from, to] :
         {std::pair{"left_window_size", "left"}, std::pair{"right_window_size", "right"}}) {
      if (const std::int64_t distance = window(from); distance >= 0) out.set(to, distance);
    }
    std::vector<ValueId> inputs = {context_.input(0), k, v, mask};
    if (lengths_) {
      inputs.push_back(lengths_);
      out.set("offset_from_lengths", std::int64_t{1});
    }
    context_.set_output(0, builder_.add("Attention", std::move(inputs), std::move(out)));
    if (context_.output_count() > 3) context_.set_output(3, scores(all_keys, mask, offset));
  }

 private:
  std::int64_t width(ValueId x, std::int64_t heads) const {
    const Shape& shape = builder_.shape(x);
    return shape.rank() == 4 ? shape[3] : shape[2] / heads;
  }

  /// The mask with the keys that a shorter one lacks, which it masks.
  ValueId for_all_keys(ValueId mask, ValueId k) {
    const Shape& of_k = builder_.shape(k);
    const std::int64_t keys = of_k[of_k.rank() == 4 ? 2 : 1];
    Shape shape = builder_.shape(mask);
    if (shape.rank() == 0 || shape[shape.rank() - 1] == 1 || shape[shape.rank() - 1] >= keys) {
      return mask;
    }
    const std::size_t last = shape.rank() - 1;
    shape[last] = keys - shape[last];
    const DType dtype = builder_.type(mask).dtype;
    const ValueId hidden =
        dtype == DType::kBool
            ? builder_.constant(HostTensor(TensorType{dtype, shape}))
            : builder_.add("Expand",
                           {builder_.scalar(-std::numeric_limits<double>::infinity(), dtype)},
                           {{"shape", shape.dims()}});
    return builder_.add("Concat", {mask, hidden}, {{"axis", static_cast<std::int64_t>(last)}});
  }

  /// (B, T, H D) or (B, H, T, D) -> (B, H, T, D)
  ValueId to_heads(ValueId x, std::int64_t heads) {
    const Shape shape = builder_.shape(x);
    if (shape.rank() == 4) return x;
    PT_CHECK(shape.rank() == 3 && shape[2] % heads == 0, kModel,
             "Attention cannot share {} among {} heads", shape.text(), heads);
    const ValueId split = builder_.reshape(x, {shape[0], shape[1], heads, shape[2] / heads});
    return builder_.add("Transpose", {split}, {{"perm", Ints{0, 2, 1, 3}}});
  }

  /// qk_matmul_output (B, H, T, S): 0 raw scores, 1 capped, 2 masked, 3 after softmax.
  ValueId scores(ValueId k, ValueId mask, std::int64_t offset) {
    const std::int64_t mode = attributes_.integer("qk_matmul_output_mode", 0);
    const ValueId q = to_heads(context_.input(0), heads_);
    const Shape of_q = builder_.shape(q);
    k = to_heads(k, key_heads_);
    const Shape of_k = builder_.shape(k);
    const DType dtype = builder_.type(q).dtype;
    // Query heads that share a key head are adjacent.
    const ValueId grouped =
        builder_.reshape(q, {of_q[0], key_heads_, heads_ / key_heads_ * of_q[2], of_q[3]});
    ValueId s = builder_.add("MatMul", {grouped, k},
                             {{"trans_a", std::int64_t{0}}, {"trans_b", std::int64_t{1}}});
    s = builder_.reshape(s, {of_q[0], heads_, of_q[2], of_k[2]});
    s = builder_.add("Mul", {s, builder_.scalar(scale_, dtype)});
    if (mode >= 1 && softcap_ > 0) {
      const ValueId cap = builder_.scalar(softcap_, dtype);
      s = builder_.add("Mul", {builder_.add("Tanh", {builder_.add("Div", {s, cap})}), cap});
    }
    if (mode < 2) return s;
    const ValueId hidden = builder_.scalar(-std::numeric_limits<double>::infinity(), dtype);
    if (mask) mask = for_all_keys(mask, k);
    if (mask && builder_.type(mask).dtype == DType::kBool) {
      s = builder_.add("Where", {mask, s, hidden});
    } else if (mask) {
      s = builder_.add("Add", {s, mask});
    }
    Geometry range;  // keys that a query sees by its place alone
    range.keys = of_k[2];
    range.offset = offset;
    range.causal = attributes_.flag("is_causal");
    range.left = window("left_window_size");
    range.right = window("right_window_size");
    if (lengths_) {
      s = builder_.add("Where", {seen_with_lengths(range, of_q[0], of_q[2]), s, hidden});
    } else if (range.causal || range.left >= 0 || range.right >= 0) {
      HostTensor seen(TensorType{DType::kBool, {of_q[2], of_k[2]}});
      for (std::int64_t i = 0; i < of_q[2]; ++i) {
        const Geometry::Range visible = range.visible(0, i, nullptr);
        for (std::int64_t j = 0; j < of_k[2]; ++j) {
          seen.view().as<bool>()[i * of_k[2] + j] = j >= visible.begin && j < visible.end;
        }
      }
      s = builder_.add("Where", {builder_.constant(std::move(seen)), s, hidden});
    }
    return mode == 3 ? shares(s) : s;
  }

  /// How far a query sees, -1 for everything. Larger numbers than any length mean the same, and
  /// additions do not overflow.
  std::int64_t window(std::string_view attribute) const {
    return std::min(attributes_.integer(attribute, -1), std::int64_t{1} << 40);
  }

  /// Geometry::visible of lengths that are known only when the graph runs: (B, 1, T or 1, S).
  ValueId seen_with_lengths(const Geometry& range, std::int64_t samples, std::int64_t queries) {
    const auto count_from = [&](std::int64_t first, const Shape& shape) {
      HostTensor out(TensorType{DType::kInt64, shape});
      std::iota(out.span<std::int64_t>().begin(), out.span<std::int64_t>().end(), first);
      return builder_.constant(std::move(out));
    };
    const ValueId key = count_from(0, {1, 1, 1, range.keys});
    const ValueId valid = builder_.reshape(lengths_, {samples, 1, 1, 1});
    const ValueId position = builder_.add("Add", {valid, count_from(-queries, {1, 1, queries, 1})});
    ValueId seen = builder_.add("Less", {key, valid});
    const auto limit = [&](const char* comparison, std::int64_t distance) {
      const ValueId end = builder_.add("Add", {position, count_from(distance, {1, 1, 1, 1})});
      seen = builder_.add("And", {seen, builder_.add(comparison, {key, end})});
    };
    if (range.causal) limit("LessOrEqual", 0);
    if (range.right >= 0) limit("LessOrEqual", range.right);
    if (range.left >= 0) limit("GreaterOrEqual", -range.left);
    return seen;
  }

  /// Zero, and not NaN, where a query sees no key.
  ValueId shares(ValueId s) {
    const DType dtype = builder_.type(s).dtype;
    const ValueId hidden = builder_.scalar(-std::numeric_limits<double>::infinity(), dtype);
    const ValueId largest =
        builder_.add("ReduceMax", {s}, {{"axes", Ints{3}}, {"keepdims", std::int64_t{1}}});
    const ValueId sees = builder_.add("Greater", {largest, hidden});
    const ValueId zero = builder_.scalar(0, dtype);
    const ValueId softmax = builder_.add("Softmax", {builder_.add("Where", {sees, s, zero})},
                                         {{"axis", std::int64_t{-1}}});
    return builder_.add("Where", {sees, softmax, zero});
  }

  ImportContext& context_;
  GraphBuilder& builder_;
  const Attributes& attributes_;
  ValueId lengths_;  // absent when all keys are valid
  bool rows_ = false;
  std::int64_t heads_ = 0;
  std::int64_t key_heads_ = 0;
  double scale_ = 1;
  double softcap_ = 0;
};

constexpr ImportRule kAttentionImports[] = {
    {"Attention", [](ImportContext& context) { Import(context).run(); }},
};

}  // namespace

std::span<const ImportRule> imports() { return kAttentionImports; }

}  // namespace pipetrain::attention
