// Untrained networks, written by the program itself: small ones for people who have no ONNX file
// yet, large ones, without weights, to plan with. Each is one pure function from its options to a
// model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "onnx_io/builder.h"

namespace pipetrain {

/// What can be chosen about a network. In a request 0 means "the network's default"; in a network's
/// defaults 0 means that the network has no such size.
struct ZooOptions {
  std::int64_t image = 0;     // height and width of the images
  std::int64_t channels = 0;  // of the images
  std::int64_t classes = 0;   // of a classifier
  std::int64_t width = 0;     // of the layers
  std::int64_t depth = 0;     // hidden layers or blocks
  std::int64_t heads = 0;     // of each attention; divides the width
  std::int64_t vocab = 0;     // different tokens
  std::int64_t context = 0;   // tokens of one sample
  std::uint64_t seed = 1;     // of the initial weights
};

struct ZooModel {
  OnnxBuilder onnx;
  std::int64_t trained_numbers = 0;
  std::string signature;  // "x (batch, 1, 28, 28) -> logits (batch, 10)"
};

struct ZooNetwork {
  std::string_view name;
  std::string_view summary;
  std::string_view data;  // flags that train it on data of the user's own
  ZooOptions defaults;
  ZooModel (*build)(const ZooOptions&);
};

std::span<const ZooNetwork> zoo_networks();
/// Null when there is no network of that name.
const ZooNetwork* find_zoo_network(std::string_view name);
/// Builds the network with its defaults where `request` has 0; a width without heads keeps the
/// width of the heads. Equal requests give equal bytes. Weights are drawn when the model is
/// written. Error (kUsage) names the flag that the network has not, or whose value it cannot take.
ZooModel build_zoo_network(const ZooNetwork& network, const ZooOptions& request);

// The networks, from complete options. Parameters are named and shaped as in PyTorch, so that a
// trained file's tensors fit a state_dict.

/// x (batch, channels, image, image) -> `depth` hidden layers of `width` with rectifiers ->
/// classes.
ZooModel build_mlp(const ZooOptions& options);
/// LeNet-5 (LeCun et al. 1998) with rectifiers and maximum pooling; image at least 12.
ZooModel build_lenet(const ZooOptions& options);
/// ResNet-18 (He et al. 2016) in its form for small images: a 3x3 first convolution and no first
/// pooling. BatchNormalization stands in inference form.
ZooModel build_resnet18(const ZooOptions& options);
/// ResNet-50 (He et al. 2016) for photographs, with the stride of a block at its 3x3 convolution,
/// as torchvision has it; image at least 32.
ZooModel build_resnet50(const ZooOptions& options);
/// VGG-11 (Simonyan & Zisserman 2015) in its form for small images: one linear layer after the
/// convolutions; image at least 32, width of the first of its levels.
ZooModel build_vgg(const ZooOptions& options);
/// MobileNetV2 (Sandler et al. 2018) in its form for small images: the first
/// two halvings are left out; width of the first convolution, all others in proportion.
ZooModel build_mobilenet(const ZooOptions& options);
/// U-Net (Ronneberger et al. 2015) with BatchNormalization and padding: x (batch, channels, image,
/// image) -> logits (batch, classes, image, image). The image is a multiple of 2^depth.
ZooModel build_unet(const ZooOptions& options);
/// BERT (Devlin et al. 2019), post-norm blocks and learned positions, one segment, no padding.
/// ids (batch, context) -> logits (batch, classes).
ZooModel build_bert(const ZooOptions& options);
/// A decoder as GPT-2 and GPT-3: pre-norm blocks, learned positions, an output layer of its own
/// (not tied to the token embedding). ids (batch, context) -> logits (batch, context, vocab).
ZooModel build_gpt(const ZooOptions& options);
/// The same by the name that its file has had from the beginning.
ZooModel build_gpt_nano(const ZooOptions& options);
/// `depth` LSTM layers between an embedding and a linear head, all of `width`. ids (batch, context)
/// -> logits (batch, context, vocab).
ZooModel build_lstm(const ZooOptions& options);

}  // namespace pipetrain
