// A language model of LSTM layers. Weights have ONNX's shapes and gate order (i o f c), so that
// nothing is reordered in a step; they are initialised as in PyTorch.
//
//   ids (batch, T) -> (T, batch) -> embedding (T, batch, C) -> LSTM layers -> (batch, T, C) -> head
#include <cmath>

#include "base/error.h"
#include "zoo/layers.h"

namespace pipetrain {

ZooModel build_lstm(const ZooOptions& options) {
  Layers layers("lstm", options.seed);
  const std::int64_t width = options.width;
  const std::string ids = layers.input("ids", DType::kInt64, {options.context});
  std::string x =
      layers.node("Transpose", "steps", {ids}, {OnnxAttribute::of_ints("perm", {1, 0})});
  const std::string tokens =
      layers.parameter("embedding.weight", {options.vocab, width}, InitialValues::normal(1));
  x = layers.node("Gather", "embedding", {tokens, x});
  const std::string direction = layers.integers("direction_axis", {1});
  const auto initial = InitialValues::uniform(1 / std::sqrt(static_cast<double>(width)));
  for (std::int64_t i = 0; i < options.depth; ++i) {
    const std::string name = fmt::format("lstm.{}", i);
    const std::string w = layers.parameter(name + ".W", {1, 4 * width, width}, initial);
    const std::string r = layers.parameter(name + ".R", {1, 4 * width, width}, initial);
    const std::string b = layers.parameter(name + ".B", {1, 8 * width}, initial);
    x = layers.node("LSTM", name, {x, w, r, b}, {OnnxAttribute::of_int("hidden_size", width)});
    x = layers.node("Squeeze", name + ".squeeze", {x, direction});
  }
  x = layers.node("Transpose", "samples", {x}, {OnnxAttribute::of_ints("perm", {1, 0, 2})});
  x = layers.node("Reshape", "rows", {x, layers.integers("rows_shape", {-1, width})});
  x = layers.linear("head", x, {.from = width, .to = options.vocab});
  const std::string shape = layers.integers("logits_shape", {-1, options.context, options.vocab});
  x = layers.node("Reshape", "logits", {x, shape});
  return std::move(layers).finish(x, {options.context, options.vocab});
}

}  // namespace pipetrain
