#include "zoo/zoo.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

constexpr std::array<ZooNetwork, 11> kNetworks = {{
    {"mlp",
     "hidden layers with ReLU, for small images",
     ZooData::kArrays,
     {.image = 28, .channels = 1, .classes = 10, .width = 256, .depth = 2},
     build_mlp},
    {"lenet",
     "LeNet-5, two convolutions and three linear layers, for small images",
     ZooData::kArrays,
     {.image = 28, .channels = 1, .classes = 10},
     build_lenet},
    {"resnet18",
     "ResNet-18 for images of 32x32: convolutions, BatchNorm, skip connections",
     ZooData::kArrays,
     {.image = 32, .channels = 3, .classes = 10, .width = 64},
     build_resnet18},
    {"resnet50",
     "ResNet-50 for photographs of 224x224",
     ZooData::kArrays,
     {.image = 224, .channels = 3, .classes = 1000, .width = 64},
     build_resnet50},
    {"vgg",
     "VGG-11 for images of 32x32: a sequence of convolutions and poolings",
     ZooData::kArrays,
     {.image = 32, .channels = 3, .classes = 10, .width = 64},
     build_vgg},
    {"mobilenet",
     "MobileNetV2 for images of 32x32: depthwise convolutions, many thin layers",
     ZooData::kArrays,
     {.image = 32, .channels = 3, .classes = 10, .width = 32},
     build_mobilenet},
    {"unet",
     "U-Net: segmentation, with skip connections from encoder to decoder",
     ZooData::kArrays,
     {.image = 64, .channels = 3, .classes = 2, .width = 32, .depth = 4},
     build_unet},
    {"bert",
     "an encoder that classifies text, BERT-mini by default",
     ZooData::kArrays,
     {.classes = 2, .width = 256, .depth = 4, .heads = 4, .vocab = 30522, .context = 128},
     build_bert},
    {"gpt-nano",
     "a small decoder that predicts the next byte of a text",
     ZooData::kText,
     {.width = 128, .depth = 4, .heads = 4, .vocab = 256, .context = 64},
     build_gpt_nano},
    {"gpt",
     "a decoder of any size, by default GPT-2's without tied weights (163 M parameters); for "
     "planning, no weights are needed",
     ZooData::kText,
     {.width = 768, .depth = 12, .heads = 12, .vocab = 50257, .context = 1024},
     build_gpt},
    {"lstm",
     "LSTM layers that predict the next byte of a text",
     ZooData::kText,
     {.width = 512, .depth = 2, .vocab = 256, .context = 64},
     build_lstm},
}};

// Beyond any existing network; products of three of them fit 64 bits.
constexpr std::int64_t kLargestSize = 65536, kLargestVocabulary = std::int64_t{1} << 20;

struct Size {
  std::string_view name;
  std::int64_t ZooOptions::*field;
};
constexpr std::array<Size, 8> kSizes = {{
    {"image", &ZooOptions::image},
    {"channels", &ZooOptions::channels},
    {"classes", &ZooOptions::classes},
    {"width", &ZooOptions::width},
    {"depth", &ZooOptions::depth},
    {"heads", &ZooOptions::heads},
    {"vocab", &ZooOptions::vocab},
    {"context", &ZooOptions::context},
}};

std::string settings_of(const ZooNetwork& network) {
  std::string out;
  for (const Size& size : kSizes) {
    if (network.defaults.*size.field > 0) out += setting(size.name) + ", ";
  }
  return out + setting("seed");
}

}  // namespace

std::span<const ZooNetwork> zoo_networks() { return kNetworks; }

const ZooNetwork* find_zoo_network(std::string_view name) {
  const auto found = std::ranges::find(kNetworks, name, &ZooNetwork::name);
  return found == kNetworks.end() ? nullptr : &*found;
}

ZooModel build_zoo_network(const ZooNetwork& network, const ZooOptions& request) {
  ZooOptions options = network.defaults;
  options.seed = request.seed;
  for (const Size& size : kSizes) {
    const std::int64_t wanted = request.*size.field;
    if (wanted == 0) continue;
    PT_CHECK(network.defaults.*size.field > 0, kUsage, "{} does not apply to {}, which has: {}",
             setting(size.name), network.name, settings_of(network));
    const std::int64_t largest = size.name == "vocab" ? kLargestVocabulary : kLargestSize;
    PT_CHECK(wanted > 0 && wanted <= largest, kUsage, "{} must be from 1 to {}, not {}",
             setting(size.name), largest, wanted);
    options.*size.field = wanted;
  }
  if (options.heads > 0 && request.heads == 0) {
    const std::int64_t head_width = network.defaults.width / network.defaults.heads;
    options.heads = std::max<std::int64_t>(1, options.width / head_width);
  }
  return network.build(options);
}

}  // namespace pipetrain
