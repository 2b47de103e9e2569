// A decoder like GPT-2 and GPT-3 with a fixed context length. Outside attention the tokens of all
// samples are rows of one matrix, so that every linear layer is one Gemm with PyTorch's (out, in)
// weight.
//
//   ids (batch, T) -> embeddings (batch, T, C) -> rows (batch * T, C) -> blocks -> norm -> lm_head
//   block: x += proj(attention(norm1(x)));  x += fc2(gelu(fc1(norm2(x))))
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/setting.h"
#include "zoo/attention.h"
#include "zoo/layers.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLongestContext = 4096;  // the mask is quadratic in it
constexpr double kDeviation = 0.02;             // of GPT-2's initial weights
// Finite, because some tools do not handle infinity; far below any score.
constexpr float kMasked = -1e9F;

/// The causal mask: 0 up to the token of the row, kMasked after it.
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
    layers_.integers("qkv_sizes", {width_, width_, width_});
    attention_.emplace(layers_, rows_shape_,
                       AttentionSpec{.context = options_.context,
                                     .heads = options_.heads,
                                     .head_width = width_ / options_.heads,
                                     .mask = "causal_mask"});
  }

  std::string block(const std::string& name, std::string x) {
    std::string y = attention(name + ".attn", layers_.layer_norm(name + ".norm1", x, width_));
    x = layers_.node("Add", name + ".add1", {x, y});
    y = mlp(name + ".mlp", layers_.layer_norm(name + ".norm2", x, width_));
    return layers_.node("Add", name + ".add2", {x, y});
  }

  // x: (batch * T, C)
  std::string attention(const std::string& name, const std::string& x) {
    const std::string qkv = layers_.linear(
        name + ".qkv", x, {.from = width_, .to = 3 * width_, .deviation = kDeviation});
    const std::vector<std::string> parts =
        layers_.split_columns(qkv, {name + ".query", name + ".key", name + ".value"}, "qkv_sizes");
    const std::string y = attention_->build(name, parts[0], parts[1], parts[2]);
    return layers_.linear(name + ".proj", y,
                          {.from = width_, .to = width_, .deviation = residual_deviation_});
  }

  std::string mlp(const std::string& name, const std::string& x) {
    const std::string y = layers_.linear(
        name + ".fc1", x, {.from = width_, .to = 4 * width_, .deviation = kDeviation});
    return layers_.linear(name + ".fc2", layers_.gelu(name + ".gelu", y),
                          {.from = 4 * width_, .to = width_, .deviation = residual_deviation_});
  }

  const ZooOptions& options_;
  Layers layers_;
  std::int64_t width_;
  // Each block adds two results to the residual; smaller weights keep its variance (Radford et al.
  // 2019).
  double residual_deviation_;
  std::string rows_shape_;
  std::optional<AttentionLayers> attention_;
};

ZooModel build_decoder(const std::string& name, const ZooOptions& options) {
  PT_CHECK(options.width % options.heads == 0, kUsage,
           "{} {} of {} is not a multiple of its {} heads; give another width or {}",
           setting("width"), options.width, name, options.heads, setting("heads"));
  PT_CHECK(options.context <= kLongestContext, kUsage, "{} must be at most {} for {}, not {}",
           setting("context"), kLongestContext, name, options.context);
  return Decoder(name, options).build();
}

}  // namespace

ZooModel build_gpt(const ZooOptions& options) { return build_decoder("gpt", options); }
ZooModel build_gpt_nano(const ZooOptions& options) { return build_decoder("gpt-nano", options); }

}  // namespace pipetrain
