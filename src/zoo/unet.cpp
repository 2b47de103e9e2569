// An encoder of levels of two convolutions, each with half the size and twice the channels of the
// previous one, and a decoder of the same levels with skip connections from the encoder:
//
//   encoder1 ----------------- concat -> decoder1 -> conv (classes of each pixel)
//      | pool                    | upconv1
//   encoder2 --------- concat -> decoder2
//      | pool            | upconv2
//          bottleneck
//
// Parameters have the names of mateuszbuda's U-Net of PyTorch Hub.
#include "base/error.h"
#include "base/setting.h"
#include "zoo/layers.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kMostLevels = 8;

/// Two 3x3 convolutions, each with BatchNormalization and ReLU. `place`: "enc1".
std::string two_convolutions(Layers& layers, const std::string& group, const std::string& place,
                             std::string x, std::int64_t from, std::int64_t to) {
  for (int i = 1; i <= 2; ++i) {
    const std::string name = fmt::format("{}.{}", group, place);
    x = layers.conv(fmt::format("{}conv{}", name, i), x,
                    {.from = i == 1 ? from : to, .to = to, .padding = 1});
    x = layers.batch_norm(fmt::format("{}norm{}", name, i), x, to);
    x = layers.relu(fmt::format("{}relu{}", name, i), x);
  }
  return x;
}

}  // namespace

ZooModel build_unet(const ZooOptions& options) {
  PT_CHECK(options.depth <= kMostLevels, kUsage, "{} must be at most {} for unet, not {}",
           setting("depth"), kMostLevels, options.depth);
  const std::int64_t multiple = std::int64_t{1} << options.depth;
  PT_CHECK(options.image % multiple == 0, kUsage,
           "{} must be a multiple of {} for unet with {} {}, not {}", setting("image"), multiple,
           setting("depth"), options.depth, options.image);
  Layers layers("unet", options.seed);
  std::string x =
      layers.input("x", DType::kFloat32, {options.channels, options.image, options.image});
  std::vector<std::string> skips;
  std::int64_t from = options.channels;
  std::int64_t to = options.width;
  for (std::int64_t i = 1; i <= options.depth; ++i) {
    skips.push_back(two_convolutions(layers, fmt::format("encoder{}", i), fmt::format("enc{}", i),
                                     x, from, to));
    x = layers.max_pool(fmt::format("pool{}", i), skips.back());
    from = to;
    to *= 2;
  }
  x = two_convolutions(layers, "bottleneck", "bottleneck", x, from, to);
  for (std::int64_t i = options.depth; i >= 1; --i) {
    x = layers.double_size(fmt::format("upconv{}", i), x, to, to / 2);
    x = layers.node("Concat", fmt::format("concat{}", i),
                    {x, skips[static_cast<std::size_t>(i - 1)]},
                    {OnnxAttribute::of_int("axis", 1)});
    x = two_convolutions(layers, fmt::format("decoder{}", i), fmt::format("dec{}", i), x, to,
                         to / 2);
    to /= 2;
  }
  x = layers.conv("conv", x, {.from = to, .to = options.classes, .kernel = 1, .bias = true});
  x = layers.node("Identity", "logits", {x});
  return std::move(layers).finish(x, {options.classes, options.image, options.image});
}

}  // namespace pipetrain
