// A decoder like GPT-2 and GPT-3, at one context length. Between the attentions the tokens of all
// samples are rows of one matrix, so that every linear layer is one Gemm with PyTorch's (out, in)
// weight.
//
//   ids (batch, T) -> embeddings (batch, T, C) -> rows (batch * T, C) -> blocks -> norm -> lm_head
//   block: x += proj(attention(norm1(x)));  x += fc2(gelu(fc1(norm2(x))))
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "zoo/layers.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLongestContext = 4096;  // the mask has its square
constexpr double kDeviation = 0.02;             // of GPT-2's initial weights
// Finite, so that no tool meets an infinity; far below any score all the same.
constexpr float kMasked = -1e9F;

/// 0 where a token (row) may look, kMasked at the tokens after it.
HostTensor causal_mask(std::int64_t tokens) {
  HostTensor mask(TensorType{DType::kFloat32, {tokens, tokens}});
  for (std::int64_t row = 0; row < tokens; ++row) {
    for (std::int64_t column = row + 1; column < tokens; ++column) {
      mask.span<float>()[static_cast<std::size_t>(row * tokens + column)] = kMasked;
    }
  }
  return mask;
}

class Decoder {
 public:
  Decoder(const std::string& name, const ZooOptions& options)
      : options_(options),
        layers_(name, options.seed),
        width_(options.width),
        head_width_(options.width / options.heads),
        residual_deviation_(kDeviation / std::sqrt(2.0 * static_cast<double>(options.depth))) {}

  ZooModel build() {
    std::string x = embed(layers_.input("ids", DType::kInt64, {options_.context}));
    add_constants();
    for (std::int64_t i = 0; i < options_.depth; ++i) x = block(fmt::format("blocks.{}", i), x);
    x = layers_.layer_norm("norm", x, width_);
    x = layers_.linear(
        "lm_head", x,
        {.from = width_, .to = options_.vocab, .bias = false, .deviation = kDeviation});
    const std::string shape =
        layers_.integers("logits_shape", {-1, options_.context, options_.vocab});
    x = layers_.node("Reshape", "logits", {x, shape});
    return std::move(layers_).finish(x, {options_.context, options_.vocab});
  }

 private:
  // ids (batch, T) -> (batch * T, C)
  std::string embed(const std::string& ids) {
    const auto initial = InitialValues::normal(kDeviation);
    const std::string tokens =
        layers_.parameter("token_embedding.weight", {options_.vocab, width_}, initial);
    const std::string positions =
        layers_.parameter("position_embedding.weight", {options_.context, width_}, initial);
    std::string x = layers_.node("Gather", "token_embedding", {tokens, ids});
    x = layers_.node("Add", "position_embedding", {x, positions});
    rows_shape_ = layers_.integers("rows_shape", {-1, width_});
    return layers_.node("Reshape", "rows", {x, rows_shape_});
  }

  void add_constants() {
    layers_.constant("causal_mask", causal_mask(options_.context));
    layers_.constant("query_factor",
                     HostTensor::scalar<float>(1 / std::sqrt(static_cast<float>(head_width_))));
    layers_.constant("sqrt2", HostTensor::scalar<float>(std::numbers::sqrt2_v<float>));
    layers_.constant("one", HostTensor::scalar<float>(1));
    layers_.constant("half", HostTensor::scalar<float>(0.5F));
    layers_.integers("qkv_sizes", {width_, width_, width_});
    layers_.integers("heads_shape", {-1, options_.context, options_.heads, head_width_});
  }

  std::string block(const std::string& name, std::string x) {
    std::string y = attention(name + ".attn", layers_.layer_norm(name + ".norm1", x, width_));
    x = layers_.node("Add", name + ".add1", {x, y});
    y = mlp(name + ".mlp", layers_.layer_norm(name + ".norm2", x, width_));
    return layers_.node("Add", name + ".add2", {x, y});
  }

  // softmax(q k' / sqrt(head width) + mask) v, head by head. x: (batch * T, C)
  std::string attention(const std::string& name, const std::string& x) {
    const std::string qkv = layers_.linear(
        name + ".qkv", x, {.from = width_, .to = 3 * width_, .deviation = kDeviation});
    const std::vector<std::string> parts =
        layers_.split_columns(qkv, {name + ".query", name + ".key", name + ".value"}, "qkv_sizes");
    const std::string scaled = layers_.node("Mul", name + ".scale", {parts[0], "query_factor"});
    const std::string q = to_heads(name + ".q", scaled, {0, 2, 1, 3});      // (batch, heads, T, D)
    const std::string k_t = to_heads(name + ".k", parts[1], {0, 2, 3, 1});  // (batch, heads, D, T)
    const std::string v = to_heads(name + ".v", parts[2], {0, 2, 1, 3});
    std::string scores = layers_.node("MatMul", name + ".scores", {q, k_t});
    scores = layers_.node("Add", name + ".masked", {scores, "causal_mask"});
    const std::string shares =
        layers_.node("Softmax", name + ".softmax", {scores}, {OnnxAttribute::of_int("axis", -1)});
    std::string y = layers_.node("MatMul", name + ".mix", {shares, v});
    y = layers_.node("Transpose", name + ".merge", {y},
                     {OnnxAttribute::of_ints("perm", {0, 2, 1, 3})});
    y = layers_.node("Reshape", name + ".rows", {y, rows_shape_});
    return layers_.linear(name + ".proj", y,
                          {.from = width_, .to = width_, .deviation = residual_deviation_});
  }

  // (batch * T, C) -> (batch, T, heads, D), permuted
  std::string to_heads(const std::string& name, const std::string& x,
                       std::vector<std::int64_t> order) {
    const std::string split = layers_.node("Reshape", name + ".heads", {x, "heads_shape"});
    return layers_.node("Transpose", name, {split},
                        {OnnxAttribute::of_ints("perm", std::move(order))});
  }

  std::string mlp(const std::string& name, const std::string& x) {
    const std::string y = layers_.linear(
        name + ".fc1", x, {.from = width_, .to = 4 * width_, .deviation = kDeviation});
    return layers_.linear(name + ".fc2", gelu(name + ".gelu", y),
                          {.from = 4 * width_, .to = width_, .deviation = residual_deviation_});
  }

  // x (1 + erf(x / sqrt 2)) / 2; Gelu is an operator from opset 20 on only
  std::string gelu(const std::string& name, const std::string& x) {
    std::string y = layers_.node("Div", name + ".div", {x, "sqrt2"});
    y = layers_.node("Add", name + ".add", {layers_.node("Erf", name + ".erf", {y}), "one"});
    y = layers_.node("Mul", name + ".mul", {x, y});
    return layers_.node("Mul", name, {y, "half"});
  }

  const ZooOptions& options_;
  Layers layers_;
  std::int64_t width_;
  std::int64_t head_width_;
  // Each block adds two results to the sum; smaller weights keep its variance (Radford et al.
  // 2019).
  double residual_deviation_;
  std::string rows_shape_;
};

ZooModel build_decoder(const std::string& name, const ZooOptions& options) {
  PT_CHECK(options.width % options.heads == 0, kUsage,
           "--width {} of {} is not a multiple of its {} heads; give another width or --heads",
           options.width, name, options.heads);
  PT_CHECK(options.context <= kLongestContext, kUsage,
           "--context must be at most {} for {}, not {}", kLongestContext, name, options.context);
  return Decoder(name, options).build();
}

}  // namespace

ZooModel build_gpt(const ZooOptions& options) { return build_decoder("gpt", options); }
ZooModel build_gpt_nano(const ZooOptions& options) { return build_decoder("gpt-nano", options); }

}  // namespace pipetrain
