#include "passes/pack_weights.h"

#include <gtest/gtest.h>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/execute.h"
#include "support/op_check.h"

namespace pipetrain {
namespace {

HostTensor series(Shape shape, unsigned seed) {
  return test::random_tensor({DType::kFloat32, std::move(shape)}, seed);
}

/// x (batch, 64) → 512 → 512 (the same weight twice) → 512 → 8 classes.
OnnxModel packed_network() {
  OnnxBuilder builder("rows");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 64}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 8}});
  builder.initializer("first", series({64, 512}, 1));
  builder.initializer("again", series({512, 512}, 2));
  builder.initializer("head", series({512, 8}, 3));
  builder.node("MatMul", {"x", "first"}, {"a"}, {}, "a");
  builder.node("MatMul", {"a", "again"}, {"b"}, {}, "b");
  builder.node("MatMul", {"b", "again"}, {"c"}, {}, "c");
  builder.node("MatMul", {"c", "head"}, {"logits"}, {}, "logits");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph build(std::int64_t samples, bool packed) {
  const OnnxModel model = packed_network();
  BuildOptions options;
  options.lower.micro_batch = samples;
  TrainingGraph training = build_training_graph(model, classify_tensors(model, {}), options);
  if (packed) {
    EXPECT_EQ(pack_weights(training), 3);
  }
  return training;
}

std::vector<HostTensor> loss_and_gradients(const TrainingGraph& training, std::int64_t samples) {
  std::vector<ValueId> wanted = {training.loss.loss_sum};
  for (const Accumulation& use : training.accumulations) wanted.push_back(use.contribution);
  return execute(training.graph, Backend::kCpu,
                 {{training.inputs[0].value, series({samples, 64}, 4)},
                  {training.loss.label, HostTensor(training.graph[training.loss.label].type)},
                  {training.loss.loss_scale, HostTensor::scalar(1e-3F)}},
                 wanted);
}

// A weight that two products read is packed once for each direction; a narrow one is not.
TEST(PackWeights, OncePerWeightAndDirection) {
  const TrainingGraph training = build(32, true);
  int copies = 0, products = 0;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name == "MatMulPacked") ++products;
    if (node.op->name != "PackMatrix") continue;
    ++copies;
    EXPECT_EQ(node.part, Part::kPrepare);
  }
  EXPECT_EQ(copies, 3) << training.graph.to_text();    // first; again, both ways
  EXPECT_EQ(products, 5) << training.graph.to_text();  // nobody asks for the gradient of x
}

TEST(PackWeights, SameLossAndGradients) {
  constexpr std::int64_t kSamples = 200;  // where plain products are our own as well
  const std::vector<HostTensor> plain = loss_and_gradients(build(kSamples, false), kSamples);
  const std::vector<HostTensor> packed = loss_and_gradients(build(kSamples, true), kSamples);
  ASSERT_EQ(plain.size(), packed.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i].type(), packed[i].type());
    for (std::size_t k = 0; k < plain[i].span<float>().size(); ++k)
      ASSERT_EQ(plain[i].span<float>()[k], packed[i].span<float>()[k]) << i << " " << k;
  }
}

}  // namespace
}  // namespace pipetrain
