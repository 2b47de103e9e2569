// Untrained networks for `pipetrain new`: small ones for users without an ONNX file, large ones,
// without weights, for planning. Each is a pure function from its options to a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "onnx_io/builder.h"

namespace pipetrain {

/// The options of a network. In a request 0 means "the network's default"; in a network's defaults
/// 0 means that the network does not have this option.
struct ZooOptions {
  std::int64_t image = 0;     // height and width of the images
  std::int64_t channels = 0;  // of the images
  std::int64_t classes = 0;   // of a classifier
  std::int64_t width = 0;     // of the layers
  std::int64_t depth = 0;     // hidden layers or blocks
  std::int64_t heads = 0;     // of each attention; divides the width
  std::int64_t vocab = 0;     // vocabulary size
  std::int64_t context = 0;   // tokens of one sample
  std::uint64_t seed = 1;     // of the initial weights
};

struct ZooModel {
  OnnxBuilder onnx;
  std::int64_t trained_numbers = 0;
  std::string signature;  // "x (batch, 1, 28, 28) -> logits (batch, 10)"
};

/// What a network is trained on.
enum class ZooData : std::uint8_t { kArrays, kText };

struct ZooNetwork {
  std::string_view name;
  std::string_view summary;
  ZooData data;
  ZooOptions defaults;
  ZooModel (*build)(const ZooOptions&);
};

std::span<const ZooNetwork> zoo_networks();
/// Null when there is no network of that name.
const ZooNetwork* find_zoo_network(std::string_view name);
/// Builds the network with its defaults where `request` has 0; a width without heads keeps the
/// width of the heads. Equal requests give equal bytes. Weights are drawn when the model is
/// written. Error (kUsage) names the setting that the network does not have, or whose value is out
/// of range.
ZooModel build_zoo_network(const ZooNetwork& network, const ZooOptions& request);

// The networks, from complete options. Parameters are named and shaped as in PyTorch, so that a
// trained file's tensors fit a state_dict.

/// x (batch, channels, image, image) -> `depth` hidden layers of `width` with ReLU -> classes.
ZooModel build_mlp(const ZooOptions& options);
/// LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; image at least 12.
ZooModel build_lenet(const ZooOptions& options);
/// ResNet-18 (He et al. 2016) for small images: a 3x3 first convolution and no first pooling.
/// BatchNormalization is in inference mode.
ZooModel build_resnet18(const ZooOptions& options);
/// ResNet-50 (He et al. 2016) for photographs, with the stride of a block at its 3x3 convolution,
/// as in torchvision; image at least 32.
ZooModel build_resnet50(const ZooOptions& options);
/// VGG-11 (Simonyan & Zisserman 2015) for small images: one linear layer after the convolutions;
/// image at least 32; `width` is that of the first stage.
ZooModel build_vgg(const ZooOptions& options);
/// MobileNetV2 (Sandler et al. 2018) for small images: the first two strides are 1; `width` is that
/// of the first convolution, all others scale with it.
ZooModel build_mobilenet(const ZooOptions& options);
/// U-Net (Ronneberger et al. 2015) with BatchNormalization and padding: x (batch, channels, image,
/// image) -> logits (batch, classes, image, image). The image is a multiple of 2^depth.
ZooModel build_unet(const ZooOptions& options);
/// BERT (Devlin et al. 2019), post-norm blocks and learned positions, one segment, no padding.
/// ids (batch, context) -> logits (batch, classes).
ZooModel build_bert(const ZooOptions& options);
/// A decoder like GPT-2 and GPT-3: pre-norm blocks, learned positions, an output layer that is not
/// tied to the token embedding. ids (batch, context) -> logits (batch, context, vocab).
ZooModel build_gpt(const ZooOptions& options);
/// The same with the default name of its file.
ZooModel build_gpt_nano(const ZooOptions& options);
/// `depth` LSTM layers between an embedding and a linear head, all of `width`. ids (batch, context)
/// -> logits (batch, context, vocab).
ZooModel build_lstm(const ZooOptions& options);

}  // namespace pipetrain
