#include "passes/pack_weights.h"

#include <gtest/gtest.h>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "ops/matmul/gemm_cpu.h"
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

/// x (batch, 32, 8, 8) → 32 channels of 8x8 → feature maps of 2x2 → 64 → 64 → 8 classes.
OnnxModel packed_convolutions() {
  OnnxBuilder builder("convolutions");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 32}, {"", 8}, {"", 8}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 8}});
  const auto conv = [&](const std::string& from, const std::string& to, Shape weight) {
    builder.initializer(to + ".bias", series({weight[0]}, 5));
    builder.initializer(to + ".weight", series(std::move(weight), 6));
    builder.node("Conv", {from, to + ".weight", to + ".bias"}, {to},
                 {OnnxAttribute::of_ints("pads", {1, 1, 1, 1})}, to);
  };
  conv("x", "a", {32, 32, 3, 3});
  builder.node(
      "MaxPool", {"a"}, {"b"},
      {OnnxAttribute::of_ints("kernel_shape", {4, 4}), OnnxAttribute::of_ints("strides", {4, 4})},
      "b");
  conv("b", "c", {64, 32, 3, 3});
  conv("c", "d", {64, 64, 3, 3});
  builder.node("Flatten", {"d"}, {"e"}, {}, "e");
  builder.initializer("head", series({256, 8}, 3));
  builder.node("MatMul", {"e", "head"}, {"logits"}, {}, "logits");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph build(const OnnxModel& model, std::int64_t samples, int copies,
                    DType precision = DType::kFloat32) {
  BuildOptions options;
  options.lower.micro_batch = samples;
  options.feature_map_layout = Layout::kBlocked8;
  options.precision = precision;
  TrainingGraph training = build_training_graph(model, classify_tensors(model, {}), options);
  if (copies > 0) {
    EXPECT_EQ(pack_weights(training), copies) << training.graph.to_text();
  }
  return training;
}

std::vector<HostTensor> results_of(const TrainingGraph& training) {
  std::vector<ValueId> wanted = {training.loss.loss_sum};
  for (const Accumulation& use : training.accumulations) wanted.push_back(use.contribution);
  const ValueId x = training.inputs[0].value;
  return execute(training.graph, Backend::kCpu,
                 {{x, series(training.graph[x].type.shape, 4)},
                  {training.loss.label, HostTensor(training.graph[training.loss.label].type)},
                  {training.loss.loss_scale, HostTensor::scalar(1e-3F)}},
                 wanted);
}

struct Packed {
  int copies = 0, products = 0, transposed = 0;
};
Packed packed_in(const TrainingGraph& training) {
  Packed found;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name == "MatMulPacked") {
      ++found.products;
      found.transposed += node.attributes.flag("transposed");
    }
    if (node.op->name != "PackMatrix") continue;
    ++found.copies;
    EXPECT_EQ(node.part, Part::kPrepare);
  }
  return found;
}

// A weight that two products read is packed once for each direction; a narrow one is not.
TEST(PackWeights, OncePerWeightAndDirection) {
  const TrainingGraph training = build(packed_network(), 100, 3);
  const Packed found = packed_in(training);
  EXPECT_EQ(found.copies, 3) << training.graph.to_text();    // first; again, both ways
  EXPECT_EQ(found.products, 5) << training.graph.to_text();  // nobody asks for the gradient of x
  EXPECT_EQ(found.transposed, 0) << training.graph.to_text();
}

// Few rows that fill vectors: what was packed for the forward serves the gradient, too.
TEST(PackWeights, OneCopyServesBothDirections) {
  if (!gemm_takes_transposed({32, 512, 512})) GTEST_SKIP() << "each direction has its own copy";
  const TrainingGraph training = build(packed_network(), 32, 2);
  const Packed found = packed_in(training);
  EXPECT_EQ(found.copies, 2) << training.graph.to_text();
  EXPECT_EQ(found.products, 5) << training.graph.to_text();
  EXPECT_EQ(found.transposed, 2) << training.graph.to_text();
  const std::vector<HostTensor> plain = results_of(build(packed_network(), 32, 0));
  const std::vector<HostTensor> packed = results_of(training);
  ASSERT_EQ(plain.size(), packed.size());
  for (std::size_t i = 0; i < plain.size(); ++i)
    test::expect_close(packed[i], plain[i], 1e-5, std::to_string(i));
}

TEST(PackWeights, ConvolutionsOncePerWeightAndDirection) {
  const TrainingGraph training = build(packed_convolutions(), 4, 5);
  int copies = 0, forward = 0, backward = 0;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name == "ConvPacked") ++forward;
    if (node.op->name == "ConvInputGradPacked") ++backward;
    if (node.op->name != "PackConvolution") continue;
    ++copies;
    EXPECT_EQ(node.part, Part::kPrepare);
  }
  EXPECT_EQ(forward, 3) << training.graph.to_text();
  EXPECT_EQ(backward, 2) << training.graph.to_text();  // nobody asks for the gradient of x
  EXPECT_EQ(copies, 5) << training.graph.to_text();
}

TEST(PackWeights, SameLossAndGradients) {
  // As many samples as plain kernels want for doing the same.
  const auto check = [](const OnnxModel& model, std::int64_t samples, int copies) {
    const std::vector<HostTensor> plain = results_of(build(model, samples, 0));
    const std::vector<HostTensor> packed = results_of(build(model, samples, copies));
    ASSERT_EQ(plain.size(), packed.size());
    for (std::size_t i = 0; i < plain.size(); ++i)
      test::expect_same_bits(packed[i], plain[i], std::to_string(i));
  };
  check(packed_network(), 200, 3);
  check(packed_convolutions(), 16, 5);
}

// Where products of bfloat16 numbers have instructions: packed from the float weights, of which the
// rounded copies go but for those that others read.
TEST(PackWeights, RoundsOnTheWay) {
  if (!has_gemm_bfloat16()) GTEST_SKIP() << "this processor multiplies no bfloat16 numbers";
  const auto count = [](const TrainingGraph& training, std::string_view op) {
    int found = 0;
    for (const Node& node : training.graph.nodes)
      found += node.part == Part::kPrepare && node.op->name == op;
    return found;
  };
  const TrainingGraph plain = build(packed_network(), 32, 0, DType::kBFloat16);
  EXPECT_EQ(count(plain, "Cast"), 3) << plain.graph.to_text();
  const TrainingGraph packed = build(packed_network(), 32, 5, DType::kBFloat16);
  EXPECT_EQ(count(packed, "Cast"), 0) << packed.graph.to_text();
  const std::vector<HostTensor> expected = results_of(plain), got = results_of(packed);
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    test::expect_same_bits(got[i], expected[i], std::to_string(i));
  const TrainingGraph convolutions = build(packed_convolutions(), 16, 2, DType::kBFloat16);
  EXPECT_EQ(count(convolutions, "Cast"), 3) << convolutions.graph.to_text();  // of the convolutions
}

}  // namespace
}  // namespace pipetrain
