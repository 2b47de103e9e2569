// (convolution -> ReLU -> pooling) twice, then three linear layers. 28x28: 28 -> 14 -> 10 -> 5.
#include "base/error.h"
#include "base/setting.h"
#include "zoo/layers.h"

namespace pipetrain {

ZooModel build_lenet(const ZooOptions& options) {
  constexpr std::int64_t kSmallestImage = 12;  // leaves 1x1 after the second pooling
  PT_CHECK(options.image >= kSmallestImage, kUsage, "{} must be at least {} for lenet, not {}",
           setting("image"), kSmallestImage, options.image);
  Layers layers("lenet", options.seed);
  std::string x =
      layers.input("x", DType::kFloat32, {options.channels, options.image, options.image});
  x = layers.conv("conv1", x,
                  {.from = options.channels, .to = 6, .kernel = 5, .padding = 2, .bias = true});
  x = layers.max_pool("pool1", layers.relu("relu1", x));
  x = layers.conv("conv2", x, {.from = 6, .to = 16, .kernel = 5, .bias = true});
  x = layers.max_pool("pool2", layers.relu("relu2", x));
  x = layers.node("Flatten", "flatten", {x});
  const std::int64_t side = (options.image / 2 - 4) / 2;
  x = layers.relu("relu3", layers.linear("fc1", x, {.from = 16 * side * side, .to = 120}));
  x = layers.relu("relu4", layers.linear("fc2", x, {.from = 120, .to = 84}));
  x = layers.linear("fc3", x, {.from = 84, .to = options.classes, .output = "logits"});
  return std::move(layers).finish(x, {options.classes});
}

}  // namespace pipetrain
