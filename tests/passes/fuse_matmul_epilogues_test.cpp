#include "passes/fuse_matmul_epilogues.h"

#include <gtest/gtest.h>

#include <map>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/execute.h"
#include "passes/fuse_elementwise.h"

namespace pipetrain {
namespace {

HostTensor some_numbers(const TensorType& type, unsigned seed) {
  HostTensor out(type);
  for (float& x : out.span<float>()) {
    seed = seed * 1664525U + 1013904223U;
    x = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return out;
}

/// x (batch, 5, 6) → 16, Gelu by tanh → 16, Gelu by erf → 8, Relu → flat → Gemm, Relu → 3: biases
/// as exporters write them, added to products of three axes, and as Gemm has them.
OnnxModel layers() {
  OnnxBuilder builder("layers", {.opset = 20, .ir_version = 9});
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 5}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 3}});
  const auto weight = [&](const std::string& name, Shape shape) {
    builder.initializer(
        name, some_numbers({DType::kFloat32, std::move(shape)}, static_cast<unsigned>(name[1])));
  };
  const auto linear = [&](const std::string& from, const std::string& to, std::int64_t inputs,
                          std::int64_t outputs) {
    weight("w" + to, {inputs, outputs});
    weight("b" + to, {outputs});
    builder.node("MatMul", {from, "w" + to}, {to + ".z"}, {}, to + ".z");
    builder.node("Add", {"b" + to, to + ".z"}, {to}, {}, to);
  };
  linear("x", "1", 6, 16);
  builder.node("Gelu", {"1"}, {"1g"}, {OnnxAttribute::of_string("approximate", "tanh")}, "1g");
  linear("1g", "2", 16, 16);
  builder.node("Gelu", {"2"}, {"2g"}, {}, "2g");
  linear("2g", "3", 16, 8);
  builder.node("Relu", {"3"}, {"3r"}, {}, "3r");
  builder.node("Flatten", {"3r"}, {"flat"}, {}, "flat");
  weight("w4", {7, 40});
  weight("b4", {7});
  builder.node("Gemm", {"flat", "w4", "b4"}, {"4"}, {OnnxAttribute::of_int("transB", 1)}, "4");
  builder.node("Relu", {"4"}, {"4r"}, {}, "4r");
  weight("w5", {7, 3});
  builder.node("MatMul", {"4r", "w5"}, {"logits"}, {}, "logits");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph built_layers(const OnnxModel& model) {
  BuildOptions options;
  options.lower.micro_batch = 2;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

std::vector<HostTensor> outcome_of(const TrainingGraph& training) {
  HostTensor label(training.graph[training.loss.label].type);
  label.span<std::int64_t>()[1] = 2;
  std::vector<ValueId> wanted = {training.loss.loss_sum};
  for (const Accumulation& use : training.accumulations) wanted.push_back(use.contribution);
  return execute(training.graph, Backend::kReference,
                 {{training.inputs[0].value, some_numbers({DType::kFloat32, {2, 5, 6}}, 1)},
                  {training.loss.label, label},
                  {training.loss.loss_scale, HostTensor::scalar(0.5F)}},
                 wanted);
}

TEST(FuseMatMulEpilogues, WhatLiesAroundThem) {
  const OnnxModel model = layers();
  const TrainingGraph plain = built_layers(model);
  TrainingGraph fused = built_layers(model);
  EXPECT_EQ(fold_biases(fused), 3);
  fuse_elementwise(fused, FusedTypes::kStored);
  const FusedMatMulEpilogues found = fuse_matmul_epilogues(fused);
  const std::string text = fused.graph.to_text();
  EXPECT_EQ(found.activations, 3) << text;  // not the Gelu by erf
  EXPECT_EQ(found.sums, 4) << text;
  std::map<std::string_view, int> count;
  for (const Node& node : fused.graph.nodes) {
    if (node.part == Part::kForward) ++count[node.op->name];
  }
  EXPECT_EQ(count["Add"], 0) << text;
  EXPECT_EQ(count["Relu"], 0) << text;
  EXPECT_EQ(count["Gelu"], 1) << text;
  const std::vector<HostTensor> expected = outcome_of(plain), actual = outcome_of(fused);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].type(), expected[i].type());
    double difference = 0, size = 0;
    for (std::size_t k = 0; k < actual[i].span<float>().size(); ++k) {
      const double a = actual[i].span<float>()[k], e = expected[i].span<float>()[k];
      difference += (a - e) * (a - e);
      size += e * e;
    }
    EXPECT_GT(size, 0) << i;
    EXPECT_LT(difference, 1e-10 * size) << i;
  }
}

}  // namespace
}  // namespace pipetrain
