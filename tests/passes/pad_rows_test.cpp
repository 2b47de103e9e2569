#include "passes/pad_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/execute.h"
#include "passes/fuse_matmul_epilogues.h"
#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain {
namespace {

struct Network {
  std::int64_t classes = 11;
  bool bias = true, folded = true, scaled = false;
  DType precision = DType::kFloat32;
};

/// x (batch, 3, 6) → MatMul, Relu → 8 → MatMul [Add] [Mul] → classes, a label for each of the 3.
TrainingGraph built(const Network& network) {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", network.classes}});
  const auto weight = [&](const std::string& name, Shape shape) {
    builder.initializer(name, test::random_tensor({DType::kFloat32, std::move(shape)}, 5));
  };
  weight("w1", {6, 8});
  weight("w2", {8, network.classes});
  weight("b2", {network.classes});
  weight("s", {1});
  builder.node("MatMul", {"x", "w1"}, {"h"}, {}, "h");
  builder.node("Relu", {"h"}, {"r"}, {}, "r");
  const char* const last = network.bias ? "y" : network.scaled ? "m" : "logits";
  builder.node("MatMul", {"r", "w2"}, {last}, {}, "product");
  if (network.bias)
    builder.node("Add", {last, "b2"}, {network.scaled ? "m" : "logits"}, {}, "bias");
  if (network.scaled) builder.node("Mul", {"m", "s"}, {"logits"}, {}, "scale");
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  BuildOptions options;
  options.lower.micro_batch = 4;
  options.precision = network.precision;
  options.loss.loss = "cross-entropy";
  TrainingGraph training = build_training_graph(model, classify_tensors(model, {}), options);
  if (network.folded) {
    fold_biases(training);
    fuse_matmul_epilogues(training);
  }
  return training;
}

std::vector<HostTensor> outcome_of(const TrainingGraph& training, Backend backend) {
  std::vector<ValueId> wanted = {training.loss.loss_sum, training.loss.correct};
  for (const Accumulation& use : training.accumulations) wanted.push_back(use.contribution);
  const Value& label = training.graph[training.loss.label];
  return execute(training.graph, backend,
                 {{training.inputs[0].value,
                   test::random_tensor(training.graph[training.inputs[0].value].type, 1)},
                  {training.loss.label, test::random_tensor(label.type, 2, 0, 11)},
                  {training.loss.loss_scale, HostTensor::scalar(0.5F)}},
                 wanted);
}

int padded_values(const TrainingGraph& training) {
  return static_cast<int>(
      std::count_if(training.graph.values.begin(), training.graph.values.end(),
                    [](const Value& value) { return value.type.layout == Layout::kPaddedRows; }));
}

TEST(PadRows, LogitsAndTheirGradientWithTheSameBits) {
  for (const bool bias : {false, true}) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      const Network network{.bias = bias, .precision = precision};
      const TrainingGraph plain = built(network);
      TrainingGraph padded = built(network);
      // A bias's gradient is summed from float logits' gradients, which products read rounded.
      const bool cast_between = bias && precision == DType::kBFloat16;
      EXPECT_EQ(pad_logits(padded), cast_between ? 0 : 1);
      // The logits as (4, 3, 11) and (12, 11), their gradient so and once more for the weight.
      EXPECT_EQ(padded_values(padded), cast_between ? 0 : 5) << padded.graph.to_text();
      for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
        const auto expected = outcome_of(plain, backend), actual = outcome_of(padded, backend);
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < actual.size(); ++i)
          test::expect_same_bits(actual[i], expected[i], "padded");
      }
    }
  }
}

TEST(PadRows, RoundedWeightsWithTheSameBits) {
  for (const bool bias : {false, true}) {
    const Network network{.bias = bias, .precision = DType::kBFloat16};
    const TrainingGraph plain = built(network);
    TrainingGraph padded = built(network);
    // (8, 11); (6, 8) is read by a product with an activation.
    EXPECT_EQ(pad_weights(padded), 1);
    EXPECT_EQ(padded_values(padded), 1) << padded.graph.to_text();
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const auto expected = outcome_of(plain, backend), actual = outcome_of(padded, backend);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i)
        test::expect_same_bits(actual[i], expected[i], "padded");
    }
  }
  TrainingGraph floats = built({});
  EXPECT_EQ(pad_weights(floats), 0);  // no copy of the weight is made
}

TEST(PadRows, OnlyWhereItIsOfUse) {
  TrainingGraph even = built({.classes = 16});
  EXPECT_EQ(pad_logits(even), 0);
  EXPECT_EQ(pad_weights(even), 0);
  EXPECT_EQ(padded_values(even), 0);
}

// A bias that is a node of its own, a factor behind the product: they know no padded rows.
TEST(PadRows, OnlyWhereNothingElseReadsOrMakesThem) {
  for (const Network& network : {Network{.folded = false}, Network{.scaled = true},
                                 Network{.bias = false, .scaled = true}}) {
    TrainingGraph training = built(network);
    EXPECT_EQ(pad_logits(training), 0) << training.graph.to_text();
    EXPECT_EQ(padded_values(training), 0);
  }
}

}  // namespace
}  // namespace pipetrain
