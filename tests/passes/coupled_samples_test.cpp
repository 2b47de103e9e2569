// Networks that mix the samples of a micro-batch are found, and those that do not are not.
#include "passes/coupled_samples.h"

#include <gtest/gtest.h>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

std::string coupled(const OnnxBuilder& builder, std::int64_t samples, std::string loss,
                    bool for_gpus = false) {
  const std::string bytes = builder.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  BuildOptions options;
  options.lower.micro_batch = samples;
  options.loss.labels = LabelHint::kGenerated;
  options.loss.loss = std::move(loss);
  options.expand_for_gpus = for_gpus;
  return build_training_graph(model, classify_tensors(model, {}), options).coupled_samples;
}

/// x (batch, 3, 4), a linear layer and what `middle` makes of its result "h" (batch, 3, 5).
template <class Middle>
std::string found(Middle middle, std::int64_t samples = 4) {
  OnnxBuilder builder("network");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  std::vector<float> weights(20);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.1F * static_cast<float>(i % 7);
  builder.initializer("w", HostTensor::of<float>({4, 5}, weights));
  const auto numbers = [&](const char* name, std::vector<std::int64_t> values) {
    builder.initializer(
        name, HostTensor::of<std::int64_t>({static_cast<std::int64_t>(values.size())}, values));
  };
  builder.node("MatMul", {"x", "w"}, {"h"}, {}, "linear");
  middle(builder, numbers);
  return coupled(builder, samples, "mse");
}

OnnxAttribute axis(std::int64_t value) { return OnnxAttribute::of_int("axis", value); }

TEST(CoupledSamples, AreFound) {
  EXPECT_EQ(
      found([](OnnxBuilder& b, auto) { b.node("Softmax", {"h"}, {"y"}, {axis(0)}, "shares"); }),
      "\"shares\" (Softmax)");
  EXPECT_EQ(found([](OnnxBuilder& b, auto) {
              b.node("ReduceMean", {"h"}, {"m"}, {OnnxAttribute::of_ints("axes", {-3})}, "mean");
              b.node("Sub", {"h", "m"}, {"y"}, {}, "centred");
            }),
            "\"mean\" (ReduceMean)");
  EXPECT_EQ(found([](OnnxBuilder& b, auto numbers) {
              numbers("zero", {0});
              b.node("CumSum", {"h", "zero"}, {"y"}, {}, "sums");
            }),
            "\"sums\" (CumSum)");
  // Halves of the batch, and every second sample.
  EXPECT_EQ(found([](OnnxBuilder& b, auto) {
              b.node("Split", {"h"}, {"first", "second"}, {axis(0)}, "halves");
              b.node("Concat", {"second", "first"}, {"y"}, {axis(0)}, "turned");
            }),
            "\"halves\" (Split)");
  EXPECT_EQ(found([](OnnxBuilder& b, auto numbers) {
              numbers("pairs", {2, 2, 15});
              numbers("rows", {4, 3, 5});
              b.node("Reshape", {"h", "pairs"}, {"p"}, {}, "pairs");
              b.node("Softmax", {"p"}, {"s"}, {axis(1)}, "shares");
              b.node("Reshape", {"s", "rows"}, {"y"}, {}, "rows");
            }),
            "\"pairs\" (Reshape)");
  // Every sample with every other one, also where each is alone in its micro-batch.
  const auto similarity = [](OnnxBuilder& b, auto) {
    b.node("Flatten", {"h"}, {"rows"}, {}, "rows");
    b.node("Transpose", {"rows"}, {"columns"}, {}, "columns");
    b.node("MatMul", {"rows", "columns"}, {"y"}, {}, "similarity");
  };
  EXPECT_EQ(found(similarity), "\"similarity\" (MatMul)");
  EXPECT_EQ(found(similarity, 1), "\"similarity\" (MatMul)");
}

/// A recurrent layer of two units, from x with `width` columns to y.
void add_recurrence(OnnxBuilder& b, const std::string& op, std::int64_t gates, std::int64_t width,
                    const std::string& x, const std::string& y, const std::string& lengths = "") {
  const auto weights = [&](const std::string& name, std::int64_t columns) {
    const std::vector<float> values(static_cast<std::size_t>(2 * gates * columns), 0.1F);
    b.initializer(name, HostTensor::of<float>({1, 2 * gates, columns}, values));
  };
  weights(y + "_w", width);
  weights(y + "_r", 2);
  b.node(op, {x, y + "_w", y + "_r", "", lengths}, {y}, {OnnxAttribute::of_int("hidden_size", 2)},
         "layer of " + y);
}

// A recurrent layer takes its steps from axis 0, where these networks have the samples.
TEST(CoupledSamples, AreFoundWhereStepsAreSamples) {
  struct Case {
    const char* op;
    const char* canonical;
    std::int64_t gates;
  };
  for (const Case& each : {Case{"LSTM", "Lstm", 4}, Case{"GRU", "Gru", 3}, Case{"RNN", "Rnn", 1}}) {
    const auto middle = [&](OnnxBuilder& b, auto) {
      add_recurrence(b, each.op, each.gates, 5, "h", "y");
    };
    EXPECT_EQ(found(middle), "\"layer of y\" (" + std::string(each.canonical) + ")");
    EXPECT_EQ(found(middle, 1), "");
  }
}

// With as many steps as samples, and a length for each sample.
TEST(CoupledSamples, AreNotFoundWhereStepsAreMovedToTheFront) {
  const auto layers = [](OnnxBuilder& b, auto numbers) {
    numbers("plain", {3, 3, 2});
    b.input("lengths", DType::kInt32, {{"batch", -1}});
    b.node("Transpose", {"h"}, {"steps"}, {OnnxAttribute::of_ints("perm", {1, 0, 2})}, "turn");
    add_recurrence(b, "RNN", 1, 5, "steps", "first", "lengths");
    b.node("Reshape", {"first", "plain"}, {"between"}, {}, "plain");
    add_recurrence(b, "RNN", 1, 2, "between", "second", "lengths");
    b.node("Transpose", {"second"}, {"y"}, {OnnxAttribute::of_ints("perm", {2, 1, 0, 3})}, "back");
  };
  EXPECT_EQ(found(layers, 3), "");
}

TEST(CoupledSamples, AreFoundBehindPatchesOfImages) {
  for (const bool for_gpus : {false, true}) {
    OnnxBuilder builder("network");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 4}, {"", 4}});
    builder.output("y", DType::kFloat32, {});
    builder.initializer("w", HostTensor::of<float>({2, 3, 2, 2}, std::vector<float>(24, 0.1F)));
    builder.node("Conv", {"x", "w"}, {"h"}, {OnnxAttribute::of_ints("strides", {2, 2})}, "patches");
    builder.node("Softmax", {"h"}, {"y"}, {axis(0)}, "shares");
    EXPECT_EQ(coupled(builder, 4, "mse", for_gpus), "\"shares\" (Softmax)") << for_gpus;
  }
}

TEST(CoupledSamples, AreNotFoundWhereThereAreNone) {
  const auto within_a_sample = [](OnnxBuilder& b, auto) {
    b.node("Softmax", {"h"}, {"s"}, {axis(1)}, "shares");
    b.node("Transpose", {"h"}, {"t"}, {OnnxAttribute::of_ints("perm", {0, 2, 1})}, "turned");
    b.node("MatMul", {"t", "s"}, {"p"}, {}, "scores");
    b.node("ReduceMean", {"p"}, {"y"}, {OnnxAttribute::of_ints("axes", {1})}, "mean");
  };
  EXPECT_EQ(found(within_a_sample), "");
  // Axis 0 is another one: (3, batch, 5).
  EXPECT_EQ(
      found([](OnnxBuilder& b, auto) {
        b.node("Transpose", {"h"}, {"t"}, {OnnxAttribute::of_ints("perm", {1, 0, 2})}, "turn");
        b.node("Softmax", {"t"}, {"s"}, {axis(0)}, "shares");
        b.node("Transpose", {"s"}, {"y"}, {OnnxAttribute::of_ints("perm", {1, 0, 2})}, "back");
      }),
      "");
  // What the loss does not depend on, and a single sample.
  EXPECT_EQ(found([](OnnxBuilder& b, auto) {
              b.output("z", DType::kFloat32, {});
              b.node("Relu", {"h"}, {"y"}, {}, "relu");
              b.node("Softmax", {"h"}, {"z"}, {axis(0)}, "shares");
            }),
            "");
  EXPECT_EQ(
      found([](OnnxBuilder& b, auto) { b.node("Softmax", {"h"}, {"y"}, {axis(0)}, "shares"); }, 1),
      "");
}

TEST(CoupledSamples, UsualNetworksHaveNone) {
  const auto none_in = [](const char* name, const ZooOptions& options) {
    const ZooNetwork& network = *find_zoo_network(name);
    EXPECT_EQ(coupled(build_zoo_network(network, options).onnx, 2, "auto"), "") << name;
  };
  none_in("lenet", {});
  for (const char* name : {"mobilenet", "unet", "lstm"}) none_in(name, {.width = 16});
  for (const char* name : {"gpt", "bert"}) none_in(name, {.width = 64, .vocab = 64});
}

}  // namespace
}  // namespace pipetrain
