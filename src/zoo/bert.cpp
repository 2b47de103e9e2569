// A BERT encoder with a fixed context length and one segment, and a classifier on its first token.
// The tokens of all samples are rows of one matrix, so that every linear layer is one Gemm.
//
//   ids (batch, T) -> embeddings (batch, T, C) -> norm -> rows (batch * T, C) -> blocks
//   block: x = norm(x + dense(attention(x)));  x = norm(x + dense(gelu(dense(x))))
//   first token of each sample (batch, C) -> tanh(dense) -> classifier
//
// Parameters have the names of transformers' BertForSequenceClassification.
#include "base/error.h"
#include "base/setting.h"
#include "zoo/attention.h"
#include "zoo/layers.h"

namespace pipetrain {
namespace {

constexpr double kBertDeviation = 0.02;  // of all initial weights
constexpr float kEpsilon = 1e-12F;       // of its norms
constexpr std::int64_t kSegments = 2;

class Encoder {
 public:
  explicit Encoder(const ZooOptions& options)
      : options_(options), layers_("bert", options.seed), width_(options.width) {}

  ZooModel build() {
    const std::string ids = layers_.input("ids", DType::kInt64, {options_.context});
    std::string x = embed(ids);
    AttentionLayers attention(layers_, rows_shape_,
                              {.context = options_.context,
                               .heads = options_.heads,
                               .head_width = width_ / options_.heads,
                               .mask = {}});
    for (std::int64_t i = 0; i < options_.depth; ++i) {
      x = block(fmt::format("bert.encoder.layer.{}", i), x, attention);
    }
    x = linear("bert.pooler.dense", first_tokens(x), width_, width_);
    x = layers_.node("Tanh", "bert.pooler.activation", {x});
    x = layers_.linear(
        "classifier", x,
        {.from = width_, .to = options_.classes, .deviation = kBertDeviation, .output = "logits"});
    return std::move(layers_).finish(x, {options_.classes});
  }

 private:
  // ids (batch, T) -> (batch * T, C)
  std::string embed(const std::string& ids) {
    const auto initial = InitialValues::normal(kBertDeviation);
    const std::string name = "bert.embeddings.";
    const std::string words =
        layers_.parameter(name + "word_embeddings.weight", {options_.vocab, width_}, initial);
    const std::string positions =
        layers_.parameter(name + "position_embeddings.weight", {options_.context, width_}, initial);
    const std::string segments =
        layers_.parameter(name + "token_type_embeddings.weight", {kSegments, width_}, initial);
    layers_.integers("segment", {0});
    std::string x = layers_.node("Gather", name + "word_embeddings", {words, ids});
    const std::string segment =
        layers_.node("Gather", name + "token_type_embeddings", {segments, "segment"});  // (1, C)
    x = layers_.node("Add", name + "add_segment", {x, segment});
    x = layers_.node("Add", name + "add_position", {x, positions});
    x = layers_.layer_norm(name + "LayerNorm", x, width_, kEpsilon);
    rows_shape_ = layers_.integers("rows_shape", {-1, width_});
    return layers_.node("Reshape", "rows", {x, rows_shape_});
  }

  std::string block(const std::string& name, std::string x, AttentionLayers& attention) {
    const std::string self = name + ".attention.self";
    const std::string query = linear(self + ".query", x, width_, width_);
    const std::string key = linear(self + ".key", x, width_, width_);
    const std::string value = linear(self + ".value", x, width_, width_);
    std::string y = attention.build(self, query, key, value);
    x = add_and_norm(name + ".attention.output", x, y, width_);
    y = linear(name + ".intermediate.dense", x, width_, 4 * width_);
    y = layers_.gelu(name + ".intermediate.gelu", y);
    return add_and_norm(name + ".output", x, y, 4 * width_);
  }

  // norm(x + dense(y)), y: (batch * T, from)
  std::string add_and_norm(const std::string& name, const std::string& x, const std::string& y,
                           std::int64_t from) {
    const std::string sum =
        layers_.node("Add", name + ".add", {linear(name + ".dense", y, from, width_), x});
    return layers_.layer_norm(name + ".LayerNorm", sum, width_, kEpsilon);
  }

  // (batch * T, C) -> (batch, C)
  std::string first_tokens(const std::string& x) {
    const std::string shape = layers_.integers("samples_shape", {-1, options_.context, width_});
    layers_.constant("first", HostTensor::scalar<std::int64_t>(0));
    const std::string samples = layers_.node("Reshape", "samples", {x, shape});
    return layers_.node("Gather", "first_tokens", {samples, "first"},
                        {OnnxAttribute::of_int("axis", 1)});
  }

  std::string linear(const std::string& name, const std::string& x, std::int64_t from,
                     std::int64_t to) {
    return layers_.linear(name, x, {.from = from, .to = to, .deviation = kBertDeviation});
  }

  const ZooOptions& options_;
  Layers layers_;
  std::int64_t width_;
  std::string rows_shape_;
};

}  // namespace

ZooModel build_bert(const ZooOptions& options) {
  PT_CHECK(options.width % options.heads == 0, kUsage,
           "{} {} of bert is not a multiple of its {} heads; give another width or {}",
           setting("width"), options.width, options.heads, setting("heads"));
  return Encoder(options).build();
}

}  // namespace pipetrain
