// Tensors that are trained although they are small or lie in loops, and statistics of inputs.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/lower.h"
#include "passes/parameters.h"

namespace pipetrain {
namespace {

HostTensor uneven_numbers(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  float next = 0.3F;
  for (float& x : out.span<float>()) x = next = 3.6F * next * (1 - next);
  return out;
}

OnnxModel read_back(const OnnxBuilder& builder) {
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

OnnxBuilder of_four() {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("layer.weight", uneven_numbers({4, 4}));
  return builder;
}

TEST(MoreParameters, WhatPyTorchRecordedIsTrainedWhateverItsSize) {
  OnnxBuilder builder = of_four();
  builder.initializer("logit_scale", uneven_numbers({}));
  builder.initializer("temperature", uneven_numbers({1}));
  builder.node("MatMul", {"x", "layer.weight"}, {"h"});
  builder.node("Mul", {"h", "logit_scale"}, {"s"});
  builder.node("Div", {"s", "temperature"}, {"y"});
  OnnxModel model = read_back(builder);
  EXPECT_EQ(classify_tensors(model, {}).at("logit_scale").use, TensorUse::kFrozen);
  for (OnnxInitializer& tensor : model.initializers)
    tensor.metadata["pkg.torch.export.graph_signature.InputSpec.kind"] = "InputKind.PARAMETER";
  const auto rules = classify_tensors(model, {});
  for (const char* name : {"layer.weight", "logit_scale", "temperature"})
    EXPECT_EQ(rules.at(name).use, TensorUse::kTrained) << name;
}

// As scikit-learn, MATLAB and TensorFlow name them.
TEST(MoreParameters, TheBiasOfALayerWithOneOutputIsTrained) {
  for (const char* name : {"intercepts1", "B2", "model/dense/BiasAdd/ReadVariableOp:0"}) {
    for (const bool turned : {false, true}) {
      OnnxBuilder builder = of_four();
      builder.initializer("last", uneven_numbers(turned ? Shape{1, 4} : Shape{4, 1}));
      for (const char* other : {name, "epsilon", "/Constant_output_0", "y_mean"})
        builder.initializer(other, uneven_numbers({1}));
      builder.node("MatMul", {"x", "layer.weight"}, {"h"});
      builder.node("Add", {"h", "epsilon"}, {"e"});
      if (turned) {
        builder.node("Gemm", {"e", "last"}, {"m"}, {OnnxAttribute::of_int("transB", 1)});
      } else {
        builder.node("MatMul", {"e", "last"}, {"m"});
      }
      builder.node("Flatten", {"m"}, {"f"});
      builder.node("Add", {name, "f"}, {"a"});
      builder.node("Add", {"m", "/Constant_output_0"}, {"b"});
      builder.node("Add", {"m", "y_mean"}, {"c"});
      builder.node("Sum", {"a", "b", "c"}, {"y"});
      const auto rules = classify_tensors(read_back(builder), {});
      EXPECT_EQ(rules.at(name).use, TensorUse::kTrained) << name;
      EXPECT_FALSE(rules.at(name).decays) << name;
      for (const char* other : {"epsilon", "/Constant_output_0", "y_mean"})
        EXPECT_EQ(rules.at(other).use, TensorUse::kFrozen) << other;
    }
  }
}

// As PaddlePaddle's exporter stores weights.
TEST(MoreParameters, TheBiasOfALayerWithOneOutputIsTrainedInAConstantNode) {
  OnnxBuilder builder = of_four();
  const auto constant = [&](const char* name, const Shape& shape) {
    builder.node("Constant", {}, {name},
                 {OnnxAttribute::of_tensor("value", uneven_numbers(shape))});
  };
  constant("epsilon", {1});
  constant("last", {4, 1});
  constant("B2", {1});
  builder.node("MatMul", {"x", "layer.weight"}, {"h"});
  builder.node("Add", {"h", "epsilon"}, {"e"});
  builder.node("MatMul", {"e", "last"}, {"m"});
  builder.node("Add", {"m", "B2"}, {"y"});
  const auto rules = classify_tensors(read_back(builder), {});
  EXPECT_EQ(rules.at("last").use, TensorUse::kTrained);
  EXPECT_EQ(rules.at("B2").use, TensorUse::kTrained);
  EXPECT_EQ(rules.at("epsilon").use, TensorUse::kFrozen);
}

// Of segmentation and of decoders: one channel.
TEST(MoreParameters, TheBiasOfAConvolutionWithOneChannelIsTrained) {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}, {"", 5}, {"", 5}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("first", uneven_numbers({1, 4, 1, 1}));
  builder.initializer("second", uneven_numbers({1, 1, 1, 1}));
  builder.initializer("third", uneven_numbers({1, 3, 1, 1}));
  for (const char* name : {"b1", "b2", "b3"}) builder.initializer(name, uneven_numbers({1}));
  builder.node("Conv", {"x", "first"}, {"c"});
  builder.node("Add", {"c", "b1"}, {"h"});
  builder.node("ConvTranspose", {"h", "second"}, {"d"});
  builder.node("Transpose", {"d"}, {"t"}, {OnnxAttribute::of_ints("perm", {0, 2, 3, 1})});
  builder.node("Add", {"t", "b2"}, {"l"});
  builder.node("Transpose", {"l"}, {"u"}, {OnnxAttribute::of_ints("perm", {0, 3, 1, 2})});
  builder.node("ConvTranspose", {"u", "third"}, {"e"});
  builder.node("Add", {"e", "b3"}, {"y"});  // of three channels
  const auto rules = classify_tensors(read_back(builder), {});
  EXPECT_EQ(rules.at("b1").use, TensorUse::kTrained);
  EXPECT_EQ(rules.at("b2").use, TensorUse::kTrained);
  EXPECT_EQ(rules.at("b3").use, TensorUse::kFrozen);
}

TEST(MoreParameters, StatisticsThatNormalizeAnInputAreNot) {
  OnnxBuilder builder = of_four();
  builder.initializer("model/normalization/Sub/y:0", uneven_numbers({1, 4}));
  builder.initializer("model/normalization/Div/y:0", uneven_numbers({1, 4}));
  builder.initializer("model/later/Sub/y:0", uneven_numbers({1, 4}));
  builder.node("Cast", {"x"}, {"c"}, {OnnxAttribute::of_int("to", 1)});
  builder.node("Sub", {"c", "model/normalization/Sub/y:0"}, {"s"});
  builder.node("Div", {"s", "model/normalization/Div/y:0"}, {"n"});
  builder.node("MatMul", {"n", "layer.weight"}, {"h"});
  builder.node("Sub", {"h", "model/later/Sub/y:0"}, {"y"});
  const auto rules = classify_tensors(read_back(builder), {});
  EXPECT_EQ(rules.at("model/normalization/Sub/y:0").use, TensorUse::kFrozen);
  EXPECT_EQ(rules.at("model/normalization/Div/y:0").use, TensorUse::kFrozen);
  EXPECT_EQ(rules.at("model/later/Sub/y:0").use, TensorUse::kTrained);
}

// Only the module is named like a parameter.
TEST(MoreParameters, BuffersOfModulesAreNotTrained) {
  OnnxBuilder builder = of_four();
  builder.initializer("pos_encoder.pe", uneven_numbers({3, 4}));
  builder.initializer("pos_embed", uneven_numbers({3, 4}));
  builder.initializer("pos_embed_window", uneven_numbers({3, 4}));
  builder.initializer("criterion.pos_weight", uneven_numbers({4}));
  builder.node("MatMul", {"x", "layer.weight"}, {"h"});
  builder.node("Add", {"h", "pos_encoder.pe"}, {"a"});
  builder.node("Add", {"a", "pos_embed"}, {"b"});
  builder.node("Add", {"b", "pos_embed_window"}, {"c"});
  builder.node("Mul", {"c", "criterion.pos_weight"}, {"y"});
  const auto rules = classify_tensors(read_back(builder), {});
  EXPECT_EQ(rules.at("pos_encoder.pe").use, TensorUse::kFrozen);
  EXPECT_EQ(rules.at("criterion.pos_weight").use, TensorUse::kFrozen);
  EXPECT_EQ(rules.at("pos_embed").use, TensorUse::kTrained);
  EXPECT_EQ(rules.at("pos_embed_window").use, TensorUse::kTrained);
}

// As converters to float16 write statistics that stay in float32.
TEST(MoreParameters, RunningStatisticsMayBeCast) {
  OnnxBuilder builder = of_four();
  builder.initializer("gain", uneven_numbers({4}));
  builder.initializer("mean", uneven_numbers({4}));
  builder.initializer("variance", uneven_numbers({4}));
  builder.node("MatMul", {"x", "layer.weight"}, {"h"});
  for (const char* name : {"mean", "variance"})
    builder.node("Cast", {name}, {std::string(name) + "32"}, {OnnxAttribute::of_int("to", 1)});
  builder.node("BatchNormalization", {"h", "gain", "gain", "mean32", "variance32"}, {"y"});
  const auto rules = classify_tensors(read_back(builder), {});
  EXPECT_EQ(rules.at("mean").use, TensorUse::kRunningStatistic);
  EXPECT_EQ(rules.at("variance").use, TensorUse::kRunningStatistic);
}

// Some exporters write short constants as lists of numbers.
TEST(MoreParameters, RunningStatisticsMayBeListsOfConstantNodes) {
  OnnxBuilder builder = of_four();
  const std::map<std::string, std::vector<float>> lists = {
      {"gain", {1, 2, 3, 4}}, {"mean", {0.5F, 1, 1.5F, 2}}, {"variance", {4, 3, 2, 1}}};
  for (const auto& [name, values] : lists)
    builder.node("Constant", {}, {name}, {OnnxAttribute::of_floats("value_floats", values)});
  builder.node("MatMul", {"x", "layer.weight"}, {"h"});
  builder.node("BatchNormalization", {"h", "gain", "gain", "mean", "variance"}, {"y"});
  const OnnxModel model = read_back(builder);
  const auto rules = classify_tensors(model, {});
  EXPECT_EQ(rules.at("mean").use, TensorUse::kRunningStatistic);
  EXPECT_EQ(rules.at("variance").use, TensorUse::kRunningStatistic);
  EXPECT_FALSE(rules.contains("gain"));  // a constant
  LowerOptions options;
  options.micro_batch = 2;
  options.mode = {true, BatchNormMode::kTrain, true};
  const TrainingGraph training = lower(model, rules, options);
  ASSERT_EQ(training.statistics.size(), 1U);
  const Value& mean = training.graph[training.statistics[0].state_mean];
  const Value& variance = training.graph[training.statistics[0].state_variance];
  EXPECT_EQ(mean.name, "mean");
  EXPECT_EQ(variance.name, "variance");
  EXPECT_EQ(mean.data.to_doubles(), (std::vector<double>{0.5, 1, 1.5, 2}));
  EXPECT_EQ(variance.data.to_doubles(), (std::vector<double>{4, 3, 2, 1}));
}

}  // namespace
}  // namespace pipetrain
