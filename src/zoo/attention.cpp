#include "zoo/attention.h"

#include <cmath>
#include <utility>

namespace pipetrain {

AttentionLayers::AttentionLayers(Layers& layers, std::string rows_shape, AttentionSpec spec)
    : layers_(layers), rows_shape_(std::move(rows_shape)), spec_(std::move(spec)) {
  layers_.constant("query_factor",
                   HostTensor::scalar<float>(1 / std::sqrt(static_cast<float>(spec_.head_width))));
  layers_.integers("heads_shape", {-1, spec_.context, spec_.heads, spec_.head_width});
}

std::string AttentionLayers::build(const std::string& name, const std::string& query,
                                   const std::string& key, const std::string& value) {
  const std::string scaled = layers_.node("Mul", name + ".scale", {query, "query_factor"});
  const std::string q = to_heads(name + ".q", scaled, {0, 2, 1, 3});  // (batch, heads, T, D)
  const std::string k_t = to_heads(name + ".k", key, {0, 2, 3, 1});   // (batch, heads, D, T)
  const std::string v = to_heads(name + ".v", value, {0, 2, 1, 3});
  std::string scores = layers_.node("MatMul", name + ".scores", {q, k_t});
  if (!spec_.mask.empty()) {
    scores = layers_.node("Add", name + ".masked", {scores, spec_.mask});
  }
  const std::string shares =
      layers_.node("Softmax", name + ".softmax", {scores}, {OnnxAttribute::of_int("axis", -1)});
  std::string y = layers_.node("MatMul", name + ".mix", {shares, v});
  y = layers_.node("Transpose", name + ".merge", {y},
                   {OnnxAttribute::of_ints("perm", {0, 2, 1, 3})});
  return layers_.node("Reshape", name + ".rows", {y, rows_shape_});
}

std::string AttentionLayers::to_heads(const std::string& name, const std::string& x,
                                      std::vector<std::int64_t> order) {
  const std::string split = layers_.node("Reshape", name + ".heads", {x, "heads_shape"});
  return layers_.node("Transpose", name, {split},
                      {OnnxAttribute::of_ints("perm", std::move(order))});
}

}  // namespace pipetrain
