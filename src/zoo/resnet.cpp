// Four levels of residual blocks; each level after the first halves the image and doubles the
// channels. Parameters have torchvision's names.
#include "base/error.h"
#include "zoo/layers.h"

namespace pipetrain {
namespace {

/// Two 3x3 convolutions with a skip connection, which is a 1x1 convolution where the shape changes.
std::string basic_block(Layers& layers, const std::string& name, const std::string& x,
                        std::int64_t from, std::int64_t to, std::int64_t stride) {
  std::string y =
      layers.conv(name + ".conv1", x, {.from = from, .to = to, .stride = stride, .padding = 1});
  y = layers.relu(name + ".relu1", layers.batch_norm(name + ".bn1", y, to));
  y = layers.conv(name + ".conv2", y, {.from = to, .to = to, .padding = 1});
  y = layers.batch_norm(name + ".bn2", y, to);
  std::string skip = x;
  if (stride != 1 || from != to) {
    skip = layers.conv(name + ".downsample.0", x,
                       {.from = from, .to = to, .kernel = 1, .stride = stride});
    skip = layers.batch_norm(name + ".downsample.1", skip, to);
  }
  return layers.relu(name + ".relu2", layers.node("Add", name + ".add", {y, skip}));
}

/// A bottleneck: 1x1 convolution to `to` channels, 3x3 with the stride, 1x1 to four times as many,
/// with a skip connection.
std::string bottleneck(Layers& layers, const std::string& name, const std::string& x,
                       std::int64_t from, std::int64_t to, std::int64_t stride) {
  std::string y = layers.conv(name + ".conv1", x, {.from = from, .to = to, .kernel = 1});
  y = layers.relu(name + ".relu1", layers.batch_norm(name + ".bn1", y, to));
  y = layers.conv(name + ".conv2", y, {.from = to, .to = to, .stride = stride, .padding = 1});
  y = layers.relu(name + ".relu2", layers.batch_norm(name + ".bn2", y, to));
  y = layers.conv(name + ".conv3", y, {.from = to, .to = 4 * to, .kernel = 1});
  y = layers.batch_norm(name + ".bn3", y, 4 * to);
  std::string skip = x;
  if (stride != 1 || from != 4 * to) {
    skip = layers.conv(name + ".downsample.0", x,
                       {.from = from, .to = 4 * to, .kernel = 1, .stride = stride});
    skip = layers.batch_norm(name + ".downsample.1", skip, 4 * to);
  }
  return layers.relu(name + ".relu3", layers.node("Add", name + ".add", {y, skip}));
}

}  // namespace

ZooModel build_resnet18(const ZooOptions& options) {
  Layers layers("resnet18", options.seed);
  std::string x =
      layers.input("x", DType::kFloat32, {options.channels, options.image, options.image});
  x = layers.conv("conv1", x, {.from = options.channels, .to = options.width, .padding = 1});
  x = layers.relu("relu", layers.batch_norm("bn1", x, options.width));
  std::int64_t from = options.width;
  for (int level = 0; level < 4; ++level) {
    const std::int64_t to = options.width << level;
    const std::string name = fmt::format("layer{}", level + 1);
    x = basic_block(layers, name + ".0", x, from, to, /*stride=*/level == 0 ? 1 : 2);
    x = basic_block(layers, name + ".1", x, to, to, /*stride=*/1);
    from = to;
  }
  x = layers.node("Flatten", "flatten", {layers.node("GlobalAveragePool", "avgpool", {x})});
  x = layers.linear("fc", x, {.from = from, .to = options.classes, .output = "logits"});
  return std::move(layers).finish(x, {options.classes});
}

ZooModel build_resnet50(const ZooOptions& options) {
  Layers layers("resnet50", options.seed);
  std::string x =
      layers.input("x", DType::kFloat32, {options.channels, options.image, options.image});
  x = layers.conv(
      "conv1", x,
      {.from = options.channels, .to = options.width, .kernel = 7, .stride = 2, .padding = 3});
  x = layers.relu("relu", layers.batch_norm("bn1", x, options.width));
  x = layers.node(
      "MaxPool", "maxpool", {x},
      {OnnxAttribute::of_ints("kernel_shape", {3, 3}), OnnxAttribute::of_ints("strides", {2, 2}),
       OnnxAttribute::of_ints("pads", {1, 1, 1, 1})});
  std::int64_t from = options.width;
  constexpr int kBlocks[] = {3, 4, 6, 3};
  for (int level = 0; level < 4; ++level) {
    const std::int64_t to = options.width << level;
    for (int block = 0; block < kBlocks[level]; ++block) {
      x = bottleneck(layers, fmt::format("layer{}.{}", level + 1, block), x, from, to,
                     /*stride=*/level > 0 && block == 0 ? 2 : 1);
      from = 4 * to;
    }
  }
  x = layers.node("Flatten", "flatten", {layers.node("GlobalAveragePool", "avgpool", {x})});
  x = layers.linear("fc", x, {.from = from, .to = options.classes, .output = "logits"});
  return std::move(layers).finish(x, {options.classes});
}

}  // namespace pipetrain
