// The image networks and BERT: parameter counts as in torchvision, PyTorch Hub and transformers,
// standard deviations of initial weights, and rejected sizes.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "onnx_io/reader.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

ZooModel image_network(const char* name, const ZooOptions& options = {}) {
  return build_zoo_network(*find_zoo_network(name), options);
}

OnnxModel parsed(const ZooModel& model) {
  const std::string bytes = model.onnx.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TEST(ImageNetworks, HaveTheParametersOfTheirModels) {
  // torchvision.models.vgg11().features, and a linear layer of 512 x 10.
  EXPECT_EQ(image_network("vgg").trained_numbers, 9'220'480 + 5'130);
  // torchvision.models.mobilenet_v2(): 3,504,872 with 1000 classes, and at half the width
  // 1,968,680.
  EXPECT_EQ(image_network("mobilenet", {.classes = 1000}).trained_numbers, 3'504'872);
  EXPECT_EQ(image_network("mobilenet", {.classes = 1000, .width = 16}).trained_numbers, 1'968'680);
  // torchvision.models.resnet50(): 25,557,032; without its last layer 23,508,032.
  EXPECT_EQ(image_network("resnet50").trained_numbers, 25'557'032);
  EXPECT_EQ(image_network("resnet50", {.classes = 10}).trained_numbers, 23'508'032 + 20'490);
  // mateuszbuda/brain-segmentation-pytorch: 7,763,041 with one output, 33 more with two.
  EXPECT_EQ(image_network("unet").trained_numbers, 7'763'041 + 33);
  // transformers.BertForSequenceClassification at the sizes of bert-mini: 11,170,560 without the
  // classifier (2 x 256 + 2), with 512 positions of 256 elements.
  EXPECT_EQ(image_network("bert").trained_numbers, 11'170'560 - 384 * 256 + 514);
}

TEST(ImageNetworks, BeginWithTheDeviationsOfTheirModels) {
  struct Case {
    const char* network;
    const char* tensor;
    double deviation;
  };
  // vgg and mobilenet: sqrt(2 / (outputs x area)), linear layers 0.01; unet: uniform in
  // +-1/sqrt(inputs x area), whose deviation is that bound / sqrt(3); bert: 0.02.
  const Case cases[] = {
      {"vgg", "features.8.weight", std::sqrt(2.0 / (256 * 9))},
      {"vgg", "classifier.weight", 0.01},
      {"mobilenet", "features.2.conv.1.0.weight", std::sqrt(2.0 / (96 * 9))},
      {"mobilenet", "features.18.0.weight", std::sqrt(2.0 / 1280)},
      {"unet", "encoder3.enc3conv1.weight", 1 / std::sqrt(3.0 * 64 * 9)},
      {"unet", "upconv4.weight", 1 / std::sqrt(3.0 * 256 * 4)},
      {"bert", "bert.embeddings.token_type_embeddings.weight", 0.02},
      {"bert", "bert.encoder.layer.3.output.dense.weight", 0.02},
  };
  for (const Case& one : cases) {
    const OnnxModel model = parsed(image_network(one.network));
    const OnnxInitializer* tensor = model.find_initializer(one.tensor);
    ASSERT_NE(tensor, nullptr) << one.tensor;
    double sum = 0, squares = 0;
    const std::vector<double> values = tensor->value.to_doubles();
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
    const auto count = static_cast<double>(values.size());
    // Five standard errors of a normal distribution, which are the larger ones.
    EXPECT_NEAR(std::sqrt(squares / count) / one.deviation, 1, 5 / std::sqrt(2 * count))
        << one.tensor;
    EXPECT_NEAR(sum / count / one.deviation, 0, 5 / std::sqrt(count)) << one.tensor;
  }
}

TEST(ImageNetworks, RefuseSizesThatDoNotFit) {
  EXPECT_THROW(image_network("vgg", {.image = 31}), Error);
  EXPECT_THROW(image_network("unet", {.image = 40}), Error);
  EXPECT_THROW(image_network("unet", {.depth = 9}), Error);
  EXPECT_THROW(image_network("bert", {.width = 100, .heads = 3}), Error);
  EXPECT_THROW(image_network("mobilenet", {.depth = 2}), Error);
  EXPECT_NO_THROW(image_network("unet", {.image = 40, .depth = 3}));
}

}  // namespace
}  // namespace pipetrain
