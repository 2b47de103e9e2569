// x -> (linear -> ReLU) for each hidden layer -> linear
#include "base/error.h"
#include "zoo/layers.h"

namespace pipetrain {

ZooModel build_mlp(const ZooOptions& options) {
  Layers layers("mlp", options.seed);
  std::string x =
      layers.input("x", DType::kFloat32, {options.channels, options.image, options.image});
  x = layers.node("Flatten", "flatten", {x});
  std::int64_t from = options.channels * options.image * options.image;
  for (std::int64_t i = 1; i <= options.depth; ++i) {
    x = layers.linear(fmt::format("fc{}", i), x, {.from = from, .to = options.width});
    x = layers.relu(fmt::format("relu{}", i), x);
    from = options.width;
  }
  const std::string last = fmt::format("fc{}", options.depth + 1);
  x = layers.linear(last, x, {.from = from, .to = options.classes, .output = "logits"});
  return std::move(layers).finish(x, {options.classes});
}

}  // namespace pipetrain
