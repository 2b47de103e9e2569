// Inverted residuals: 1x1 expansion, 3x3 depthwise, 1x1 projection without ReLU, with a skip
// connection where the shape is unchanged. Parameters are named and initialised as in torchvision;
// its dropout before the last layer is left out.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "zoo/layers.h"

namespace pipetrain {
namespace {

/// `repeats` blocks; the first has the stride.
struct Level {
  std::int64_t expansion, channels, repeats, stride;
};
// Table 2 of the paper, adapted to 32x32: the first convolution and the second stage have stride 1.
constexpr std::array<Level, 7> kLevels = {{{1, 16, 1, 1},
                                           {6, 24, 2, 1},
                                           {6, 32, 3, 2},
                                           {6, 64, 4, 2},
                                           {6, 96, 3, 1},
                                           {6, 160, 3, 2},
                                           {6, 320, 1, 1}}};
constexpr std::int64_t kFirstChannels = 32;
constexpr std::int64_t kLastChannels = 1280;

/// Channels scaled by the width of the first convolution: the nearest multiple of 8, at least 90 %.
std::int64_t scaled(std::int64_t channels, std::int64_t width) {
  const std::int64_t numerator = channels * width;
  const std::int64_t rounded =
      std::max<std::int64_t>(8, (numerator + 4 * kFirstChannels) / (8 * kFirstChannels) * 8);
  return 10 * rounded * kFirstChannels < 9 * numerator ? rounded + 8 : rounded;
}

class MobileNet {
 public:
  explicit MobileNet(const ZooOptions& options)
      : options_(options), layers_("mobilenet", options.seed) {}

  ZooModel build() {
    std::string x =
        layers_.input("x", DType::kFloat32, {options_.channels, options_.image, options_.image});
    std::int64_t from = scaled(kFirstChannels, options_.width);
    x = conv_norm("features.0.0", "features.0.1", x,
                  {.from = options_.channels, .to = from, .padding = 1});
    x = clip("features.0.2", x);
    int number = 1;
    for (const Level& level : kLevels) {
      const std::int64_t to = scaled(level.channels, options_.width);
      for (std::int64_t i = 0; i < level.repeats; ++i) {
        const std::string name = fmt::format("features.{}", number++);
        x = block(name, x, from, to, level.expansion, i == 0 ? level.stride : 1);
        from = to;
      }
    }
    const std::int64_t last = std::max(kLastChannels, scaled(kLastChannels, options_.width));
    x = conv_norm("features.18.0", "features.18.1", x, {.from = from, .to = last, .kernel = 1});
    x = clip("features.18.2", x);
    x = layers_.node("Flatten", "flatten", {layers_.node("GlobalAveragePool", "avgpool", {x})});
    x = layers_.linear(
        "classifier.1", x,
        {.from = last, .to = options_.classes, .deviation = 0.01, .output = "logits"});
    return std::move(layers_).finish(x, {options_.classes});
  }

 private:
  std::string block(const std::string& name, const std::string& x, std::int64_t from,
                    std::int64_t to, std::int64_t expansion, std::int64_t stride) {
    const std::int64_t inner = from * expansion;
    const std::string conv = name + ".conv";
    int part = 0;
    std::string y = x;
    if (expansion != 1) {
      y = convolution(conv, part++, y, {.from = from, .to = inner, .kernel = 1});
    }
    y = convolution(conv, part++, y,
                    {.from = inner, .to = inner, .stride = stride, .padding = 1, .groups = inner});
    y = conv_norm(fmt::format("{}.{}", conv, part), fmt::format("{}.{}", conv, part + 1), y,
                  {.from = inner, .to = to, .kernel = 1});
    if (stride != 1 || from != to) return y;
    return layers_.node("Add", name + ".add", {x, y});
  }

  /// With BatchNormalization and ReLU6.
  std::string convolution(const std::string& name, int part, const std::string& x,
                          const ConvSpec& spec) {
    const std::string own = fmt::format("{}.{}", name, part);
    return clip(own + ".2", conv_norm(own + ".0", own + ".1", x, spec));
  }

  std::string conv_norm(const std::string& conv, const std::string& norm, const std::string& x,
                        ConvSpec spec) {
    spec.normal = true;
    return layers_.batch_norm(norm, layers_.conv(conv, x, spec), spec.to);
  }

  /// ReLU6.
  std::string clip(const std::string& name, const std::string& x) {
    if (!has_limits_) {
      layers_.constant("zero", HostTensor::scalar<float>(0));
      layers_.constant("six", HostTensor::scalar<float>(6));
      has_limits_ = true;
    }
    return layers_.node("Clip", name, {x, "zero", "six"});
  }

  const ZooOptions& options_;
  Layers layers_;
  bool has_limits_ = false;
};

}  // namespace

ZooModel build_mobilenet(const ZooOptions& options) { return MobileNet(options).build(); }

}  // namespace pipetrain
