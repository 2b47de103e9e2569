// If, Loop and Scan whose sub-graphs use a weight of the graph around them.
#include "passes/control_flow.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "onnx_io/encode.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/execute.h"
#include "support/onnx_parts.h"
#include "support/op_check.h"

namespace pipetrain {
namespace {

std::string graph_attribute(std::string_view name, const ModelParts& body) {
  return field(5, field(1, name) + field(6, body.graph()) + field(20, std::int64_t{5}));
}

ModelParts body(std::vector<std::string> nodes, const std::vector<std::string>& inputs,
                const std::vector<std::string>& outputs) {
  ModelParts out;
  out.nodes = std::move(nodes);
  for (const std::string& name : inputs) {
    out.inputs.push_back(value_part(name, DType::kFloat32, {}));
  }
  for (const std::string& name : outputs) {
    out.outputs.push_back(value_part(name, DType::kFloat32, {}));
  }
  return out;
}

HostTensor weight() { return test::floats({2, 2}, {1, 0.5F, -0.5F, 2}); }

/// x (batch, 2) -> the node -> y, with W (2, 2), the constants c (true) and n (3).
OnnxModel model_of(const std::string& node) {
  ModelParts parts;
  parts.opsets = {encode_opset("", 17)};
  parts.initializers = {encode_tensor("W", weight()), encode_tensor("c", HostTensor::scalar(true)),
                        encode_tensor("n", HostTensor::scalar<std::int64_t>(3))};
  parts.inputs = {value_part("x", DType::kFloat32, {{"batch", -1}, {"", 2}})};
  parts.outputs = {value_part("y", DType::kFloat32, {{"batch", -1}, {"", 2}})};
  parts.nodes = {node};
  const std::string bytes = parts.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

std::string if_node(const std::string& condition) {
  const ModelParts taken = body({node_part("MatMul", {"x", "W"}, {"t"})}, {}, {"t"});
  const ModelParts other = body({node_part("Relu", {"x"}, {"e"})}, {}, {"e"});
  return node_part("If", {condition}, {"y"}) + graph_attribute("then_branch", taken) +
         graph_attribute("else_branch", other);
}

std::string loop_node(const std::string& count) {
  const ModelParts round =
      body({node_part("MatMul", {"s", "W"}, {"next"}), node_part("Identity", {"go"}, {"still"})},
           {"i", "go", "s"}, {"still", "next"});
  return node_part("Loop", {count, "c", "x"}, {"y"}) + graph_attribute("body", round);
}

TrainingGraph lowered(const OnnxModel& model) {
  LowerOptions options;
  options.micro_batch = 1;
  return lower(model, classify_tensors(model, {}), options);
}

std::string ops_of(const TrainingGraph& training) {
  std::string out;
  for (const Node& node : training.graph.nodes) out += std::string(node.op->name) + " ";
  return out;
}

std::vector<double> run(const TrainingGraph& training, const HostTensor& x) {
  return execute(training.graph, Backend::kReference, {{training.inputs[0].value, x}},
                 {training.outputs[0]})[0]
      .to_doubles();
}

TEST(ControlFlow, AKnownConditionTakesItsBranch) {
  const TrainingGraph training = lowered(model_of(if_node("c")));
  EXPECT_EQ(ops_of(training), "MatMul ");
  ASSERT_EQ(training.parameters.size(), 1U);  // W is a weight although only the branch reads it
  EXPECT_EQ(training.parameters[0].name, "W");
  EXPECT_EQ(run(training, test::floats({1, 2}, {1, 2})), (std::vector<double>{0, 4.5}));
}

TEST(ControlFlow, AKnownCountUnrolls) {
  const TrainingGraph training = lowered(model_of(loop_node("n")));
  EXPECT_EQ(ops_of(training), "MatMul MatMul MatMul ");
  // (1, 2) W = (0, 4.5), W of that = (-2.25, 9), and of that (-6.75, 16.875)
  EXPECT_EQ(run(training, test::floats({1, 2}, {1, 2})), (std::vector<double>{-6.75, 16.875}));
  std::set<std::string> names;
  for (const Node& node : training.graph.nodes) names.insert(node.name);
  EXPECT_EQ(names.size(), 3U);
}

// The rows of x (1, 2) along axis 1: sums so far.
TEST(ControlFlow, AScanVisitsItsAxis) {
  const ModelParts step =
      body({node_part("Add", {"s", "e"}, {"sum"}), node_part("Identity", {"sum"}, {"kept"})},
           {"s", "e"}, {"sum", "kept"});
  const std::string node = node_part("Scan", {"zero", "x"}, {"last", "y"},
                                     {OnnxAttribute::of_int("num_scan_inputs", 1),
                                      OnnxAttribute::of_ints("scan_input_axes", {1}),
                                      OnnxAttribute::of_ints("scan_output_axes", {1})}) +
                           graph_attribute("body", step);
  ModelParts parts;
  parts.opsets = {encode_opset("", 17)};
  parts.initializers = {encode_tensor("zero", test::floats({1}, {0.25F}))};
  parts.inputs = {value_part("x", DType::kFloat32, {{"batch", -1}, {"", 2}})};
  parts.outputs = {value_part("y", DType::kFloat32, {{"batch", -1}, {"", 2}})};
  parts.nodes = {node};
  const std::string bytes = parts.bytes();
  const TrainingGraph training =
      lowered(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}));
  EXPECT_EQ(run(training, test::floats({1, 2}, {1, 2})), (std::vector<double>{1.25, 3.25}));
}

TEST(ControlFlow, WhatDependsOnDataIsRefusedByName) {
  const auto refused = [](const std::string& node, const std::string& before,
                          std::string_view text) {
    ModelParts parts;
    parts.opsets = {encode_opset("", 17)};
    parts.initializers = {encode_tensor("W", weight()),
                          encode_tensor("c", HostTensor::scalar(true))};
    parts.inputs = {value_part("x", DType::kFloat32, {{"batch", -1}, {"", 2}})};
    parts.outputs = {value_part("y", DType::kFloat32, {{"batch", -1}, {"", 2}})};
    parts.nodes = {node_part("ReduceSum", {"x"}, {"sum"}, {OnnxAttribute::of_int("keepdims", 0)}),
                   before, node};
    const std::string bytes = parts.bytes();
    const OnnxModel model =
        read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
    test::expect_error(ErrorKind::kModel, text, [&] { lowered(model); });
  };
  const auto cast = [](DType to) {
    return node_part("Cast", {"sum"}, {"known"},
                     {OnnxAttribute::of_int("to", static_cast<std::int64_t>(to))});
  };
  refused(if_node("known"), cast(DType::kBool),
          "which branch of node #2 (If) runs depends on data");
  refused(loop_node("known"), cast(DType::kInt64), "how often node #2 (Loop) runs depends on data");
}

TEST(ControlFlow, OperatorsInsideAreRefusedByName) {
  const ModelParts odd = body({node_part("SequenceEmpty", {}, {"t"})}, {}, {"t"});
  const std::string node = node_part("If", {"c"}, {"y"}) + graph_attribute("then_branch", odd) +
                           graph_attribute("else_branch", odd);
  test::expect_error(ErrorKind::kModel, "SequenceEmpty", [&] { lowered(model_of(node)); });
}

}  // namespace
}  // namespace pipetrain
