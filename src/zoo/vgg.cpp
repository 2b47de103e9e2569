// Eight 3x3 convolutions with ReLU in five stages, each ending in a max pooling that halves the
// image, then one linear layer. Parameters are named and initialised as in torchvision.
#include <array>

#include "base/error.h"
#include "base/setting.h"
#include "zoo/layers.h"

namespace pipetrain {

ZooModel build_vgg(const ZooOptions& options) {
  constexpr std::int64_t kSmallestImage = 32;  // leaves 1x1 after the last pooling
  PT_CHECK(options.image >= kSmallestImage, kUsage, "{} must be at least {} for vgg, not {}",
           setting("image"), kSmallestImage, options.image);
  // Channels in multiples of the width; 0 is a pooling.
  constexpr std::array<std::int64_t, 13> kLevels = {1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0};
  Layers layers("vgg", options.seed);
  std::string x =
      layers.input("x", DType::kFloat32, {options.channels, options.image, options.image});
  std::int64_t from = options.channels;
  int number = 0;  // index in torchvision's Sequential, which includes ReLU and pooling
  for (const std::int64_t level : kLevels) {
    const std::string name = fmt::format("features.{}", number++);
    if (level == 0) {
      x = layers.max_pool(name, x);
      continue;
    }
    const std::int64_t to = level * options.width;
    x = layers.conv(name, x, {.from = from, .to = to, .padding = 1, .bias = true, .normal = true});
    x = layers.relu(fmt::format("features.{}", number++), x);
    from = to;
  }
  x = layers.node("Flatten", "flatten", {x});
  const std::int64_t side = options.image / 32;
  x = layers.linear(
      "classifier", x,
      {.from = from * side * side, .to = options.classes, .deviation = 0.01, .output = "logits"});
  return std::move(layers).finish(x, {options.classes});
}

}  // namespace pipetrain
