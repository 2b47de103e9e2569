// Small networks are tried out, of large ones the masks are read: both must see a leak.
#include "passes/causality.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "support/temporary_directory.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kTokens = 16;

ZooModel decoder() {
  return build_zoo_network(*find_zoo_network("gpt"),
                           {.width = 32, .depth = 2, .heads = 2, .vocab = 50, .context = kTokens});
}

OnnxModel with_weights() {
  const std::string bytes = decoder().onnx.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

// Cannot be tried, like a large one.
OnnxModel without_weights() {
  const TemporaryDirectory directory;
  decoder().onnx.write_hollow(directory / "gpt.onnx");
  return read_onnx(directory / "gpt.onnx");
}

// Lets token `row` look at token `column`.
OnnxModel leaking(OnnxModel model, std::int64_t row, std::int64_t column) {
  const OnnxInitializer* mask = model.find_initializer("causal_mask");
  mask->value.span<float>()[static_cast<std::size_t>(row * kTokens + column)] = 0;
  return model;
}

LossKind inferred_loss(const OnnxModel& model, LabelHint labels) {
  BuildOptions options;
  options.lower.micro_batch = 2;
  options.loss.labels = labels;
  return build_training_graph(model, classify_tensors(model, {}), options).loss.kind;
}

TEST(Causality, IsSeenByTrialAndInTheMasks) {
  EXPECT_EQ(inferred_loss(with_weights(), LabelHint::kUnknown), LossKind::kCausalLm);
  EXPECT_EQ(inferred_loss(without_weights(), LabelHint::kUnknown), LossKind::kCausalLm);
}

TEST(Causality, TokensMayHave32Bits) {
  const auto narrow = [](OnnxModel model) {
    for (OnnxValue& input : model.inputs) input.dtype = DType::kInt32;
    return model;
  };
  EXPECT_EQ(inferred_loss(narrow(with_weights()), LabelHint::kUnknown), LossKind::kCausalLm);
  EXPECT_EQ(inferred_loss(narrow(leaking(with_weights(), 3, kTokens - 1)), LabelHint::kInteger),
            LossKind::kCrossEntropy);
}

TEST(Causality, ALeakIsSeenByTrial) {
  EXPECT_EQ(inferred_loss(leaking(with_weights(), 3, kTokens - 1), LabelHint::kInteger),
            LossKind::kCrossEntropy);
  // Labels that are made up are whatever fits.
  EXPECT_EQ(inferred_loss(leaking(with_weights(), 3, kTokens - 1), LabelHint::kGenerated),
            LossKind::kCrossEntropy);
  EXPECT_THROW(inferred_loss(leaking(with_weights(), 3, kTokens - 1), LabelHint::kUnknown), Error);
}

// The next tokens are those of a network's first tokens; a decoder's come second and need labels.
TEST(Causality, ADecoderBehindAnEncoderIsTrainedOnLabels) {
  OnnxBuilder builder("test");
  builder.input("source", DType::kInt64, {{"batch", -1}, {"", 4}});
  builder.input("target", DType::kInt64, {{"batch", -1}, {"", 3}});
  builder.output("logits", DType::kFloat32, {});
  std::vector<float> table(6 * 6);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = 0.1F * static_cast<float>(i * 7 % 11);
  builder.initializer("embedding.weight", HostTensor::of<float>({6, 6}, table));
  builder.node("Gather", {"embedding.weight", "source"}, {"seen"});
  builder.node("ReduceMean", {"seen"}, {"mean"},
               {OnnxAttribute::of_ints("axes", {1}), OnnxAttribute::of_int("keepdims", 1)});
  builder.node("Gather", {"embedding.weight", "target"}, {"asked"});
  builder.node("Add", {"asked", "mean"}, {"logits"});
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  for (const LabelHint labels : {LabelHint::kInteger, LabelHint::kGenerated})
    EXPECT_EQ(inferred_loss(model, labels), LossKind::kCrossEntropy);
  EXPECT_THROW(inferred_loss(model, LabelHint::kUnknown), Error);
}

// Positions look up a table too, but nobody predicts them.
TEST(Causality, TokensMayComeBehindTheirPositions) {
  for (const auto& [other, places] :
       {std::pair{"position_ids", 4}, {"position_ids", 6}, {"token_type_ids", 4}}) {
    OnnxBuilder builder("test");
    builder.input(other, DType::kInt64, {{"batch", -1}, {"", 3}});
    builder.input("input_ids", DType::kInt64, {{"batch", -1}, {"", 3}});
    builder.output("logits", DType::kFloat32, {});
    std::vector<float> table(6 * 6);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = 0.1F * static_cast<float>(i * 7 % 11);
    builder.initializer("embedding.weight", HostTensor::of<float>({6, 6}, table));
    table.resize(static_cast<std::size_t>(places) * 6);
    builder.initializer("places.weight", HostTensor::of<float>({places, 6}, table));
    builder.node("Gather", {"places.weight", other}, {"place"});
    builder.node("Gather", {"embedding.weight", "input_ids"}, {"seen"});
    builder.node("Add", {"seen", "place"}, {"logits"});
    const std::string bytes = builder.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    EXPECT_EQ(inferred_loss(model, LabelHint::kUnknown), LossKind::kCausalLm)
        << other << " of " << places;
  }
}

TEST(Causality, ALeakThatCannotBeTriedIsAskedAbout) {
  for (const auto& [row, column] : {std::pair{0, 1}, {3, 9}, {14, 15}}) {
    try {
      inferred_loss(leaking(without_weights(), row, column), LabelHint::kInteger);
      ADD_FAILURE() << "token " << row << " sees " << column;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find("`loss` causal-lm"), std::string::npos) << error.message();
    }
  }
  // Earlier tokens may be hidden as well: that leaks nothing.
  OnnxModel model = without_weights();
  model.find_initializer("causal_mask")->value.span<float>()[5 * kTokens + 2] = -1e9F;
  EXPECT_EQ(inferred_loss(model, LabelHint::kInteger), LossKind::kCausalLm);
}

}  // namespace
}  // namespace pipetrain
