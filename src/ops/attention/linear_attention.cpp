// Imports of the recurrent operators of opset 27 that are composed of others: LinearAttention,
// unrolled over its tokens, and CausalConvWithState.
#include <cmath>

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kMostTokens = 4096;  // each adds up to eight nodes

/// The state of every key head, (B, G, K, V), is carried from token to token.
class LinearAttention {
 public:
  explicit LinearAttention(ImportContext& context)
      : context_(context), builder_(context.builder()) {
    const Attributes& attributes = context.attributes();
    rule_ = attributes.text("update_rule", "gated_delta");
    PT_CHECK(rule_ == "linear" || rule_ == "gated" || rule_ == "delta" || rule_ == "gated_delta",
             kModel, "LinearAttention has no update rule \"{}\"", printable(rule_));
    const Shape q = context.type(0).shape, k = context.type(1).shape, v = context.type(2).shape;
    const std::int64_t heads = attributes.integer("q_num_heads");
    key_heads_ = attributes.integer("kv_num_heads");
    PT_CHECK(q.rank() == 3 && k.rank() == 3 && v.rank() == 3 && heads > 0 && key_heads_ > 0 &&
                 heads % key_heads_ == 0 && q[2] % heads == 0 && k[2] % key_heads_ == 0 &&
                 v[2] % key_heads_ == 0 && q[2] / heads == k[2] / key_heads_ && q[1] == k[1] &&
                 k[1] == v[1],
             kModel, "LinearAttention query {}, key {} and value {} have incompatible shapes",
             q.text(), k.text(), v.text());
    samples_ = q[0], tokens_ = q[1], group_ = heads / key_heads_;
    key_width_ = q[2] / heads, value_width_ = v[2] / key_heads_;
    PT_CHECK(tokens_ >= 1 && tokens_ <= kMostTokens, kModel,
             "LinearAttention is unrolled; it takes 1 to {} tokens, not {}", kMostTokens, tokens_);
    const double scale = attributes.real("scale", 0);
    scale_ = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(key_width_));
  }

  void run() {
    const DType dtype = context_.type(0).dtype;
    const bool gated = rule_.starts_with("gated"), delta = rule_.ends_with("delta");
    const ValueId scaled = builder_.add("Mul", {context_.input(0), builder_.scalar(scale_, dtype)});
    const auto queries = steps(scaled, {key_heads_, group_, key_width_});
    const auto keys = steps(context_.input(1), {key_heads_, 1, key_width_});
    const auto values = steps(context_.input(2), {key_heads_, 1, value_width_});
    std::vector<ValueId> decays, rates;
    if (gated) {
      const std::int64_t width = context_.type(4).shape[2] / key_heads_;
      decays = steps(builder_.add("Exp", {context_.input(4)}), {key_heads_, width, 1});
    }
    if (delta) rates = steps(context_.input(5), {context_.type(5).shape[2], 1, 1});
    ValueId state = context_.has_input(3)
                        ? context_.input(3)
                        : builder_.constant(HostTensor(
                              TensorType{dtype, {samples_, key_heads_, key_width_, value_width_}}));
    std::vector<ValueId> outputs;
    for (std::size_t t = 0; t < queries.size(); ++t) {
      if (gated) state = builder_.add("Mul", {state, decays[t]});
      ValueId change = values[t];
      if (delta) {
        const ValueId error =
            builder_.add("Sub", {values[t], product(keys[t], state, /*trans_a=*/false)});
        change = builder_.add("Mul", {error, rates[t]});
      }
      state = builder_.add("Add", {state, product(keys[t], change, /*trans_a=*/true)});
      const ValueId y = product(queries[t], state, /*trans_a=*/false);
      outputs.push_back(builder_.reshape(y, {samples_, 1, key_heads_ * group_ * value_width_}));
    }
    context_.set_output(0, outputs.size() == 1 ? outputs[0]
                                               : builder_.add("Concat", std::move(outputs),
                                                              {{"axis", std::int64_t{1}}}));
    if (context_.output_count() > 1) context_.set_output(1, state);
  }

 private:
  ValueId product(ValueId a, ValueId b, bool trans_a) {
    return builder_.add("MatMul", {a, b},
                        {{"trans_a", std::int64_t{trans_a}}, {"trans_b", std::int64_t{0}}});
  }

  /// x (B, T, …) as T tensors (B, inner…).
  std::vector<ValueId> steps(ValueId x, const Shape& inner) {
    PT_CHECK(builder_.shape(x).count() == samples_ * tokens_ * inner.count(), kModel,
             "LinearAttention has {} where ({}, {}, {}) is needed", builder_.shape(x).text(),
             samples_, tokens_, inner.count());
    std::vector<ValueId> parts = {x};
    if (tokens_ > 1) {
      parts = builder_.add_all(
          "Split", {x},
          {{"axis", std::int64_t{1}}, {"sizes", Ints(static_cast<std::size_t>(tokens_), 1)}});
    }
    std::vector<std::int64_t> dims = {samples_};
    dims.insert(dims.end(), inner.begin(), inner.end());
    for (ValueId& part : parts) part = builder_.reshape(part, Shape(dims));
    return parts;
  }

  ImportContext& context_;
  GraphBuilder& builder_;
  std::string rule_;
  std::int64_t samples_ = 0, tokens_ = 0, key_heads_ = 0, group_ = 0;
  std::int64_t key_width_ = 0, value_width_ = 0;
  double scale_ = 1;
};

// x (B, C, T), w (C, 1, K), bias (C), past (B, C, K - 1) -> y (B, C, T), the last K - 1 positions
void import_causal_conv(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape, w = context.type(1).shape;
  PT_CHECK(shape.rank() == 3 && w.rank() == 3 && w[0] == shape[1] && w[1] == 1 && w[2] >= 1, kModel,
           "CausalConvWithState of {} does not fit weights of shape {}", shape.text(), w.text());
  const std::int64_t before = w[2] - 1;
  const ValueId past = context.has_input(3)
                           ? context.input(3)
                           : builder.constant(HostTensor(
                                 TensorType{context.type(0).dtype, {shape[0], shape[1], before}}));
  const ValueId x =
      before == 0 ? context.input(0)
                  : builder.add("Concat", {past, context.input(0)}, {{"axis", std::int64_t{2}}});
  std::vector<ValueId> inputs = {x, context.input(1)};
  if (context.has_input(2)) inputs.push_back(context.input(2));
  const Attributes attributes = {{"group", shape[1]}};
  ImportContext conv(builder, "Conv", context.opset(), attributes, std::move(inputs), 1,
                     context.mode());
  find_import("Conv")->import(conv);
  ValueId y = conv.outputs()[0];
  const std::string activation = context.attributes().text("activation", "none");
  PT_CHECK(activation == "none" || activation == "silu" || activation == "swish", kModel,
           "CausalConvWithState has no activation \"{}\"", printable(activation));
  if (activation != "none") y = builder.add("Silu", {y});
  context.set_output(0, y);
  if (context.output_count() > 1) {
    context.set_output(1, builder.add("Slice", {x},
                                      {{"starts", Ints{shape[2]}},
                                       {"ends", Ints{shape[2] + before}},
                                       {"axes", Ints{2}},
                                       {"steps", Ints{1}}}));
  }
}

constexpr ImportRule kLinearAttentionImports[] = {
    {"CausalConvWithState", import_causal_conv},
    {"LinearAttention", [](ImportContext& context) { LinearAttention(context).run(); }},
};

}  // namespace

const OpFamily& linear_attention_family() {
  static const OpFamily family = {"linear_attention", {}, kLinearAttentionImports, {}, {}};
  return family;
}

}  // namespace pipetrain
