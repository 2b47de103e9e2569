// If, Loop and Scan whose sub-graphs use a weight of the graph around them.
#include "passes/control_flow.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "onnx_io/encode.h"
#include "onnx_io/reader.h"
#include "passes/adapters.h"
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

TEST(ControlFlow, WeightsInsideAreNamedAsNotTrained) {
  EXPECT_EQ(note_on_tensors_in_subgraphs(model_of(if_node("c"))), "");
  ModelParts own = body({node_part("MatMul", {"x", "V"}, {"t"})}, {}, {"t"});
  own.initializers = {encode_tensor("V", weight())};
  const ModelParts outer =
      body({node_part("If", {"c"}, {"t"}) + graph_attribute("then_branch", own) +
            graph_attribute("else_branch", own)},
           {}, {"t"});
  const OnnxModel model =
      model_of(node_part("If", {"c"}, {"y"}) + graph_attribute("then_branch", own) +
               graph_attribute("else_branch", outer));
  EXPECT_EQ(note_on_tensors_in_subgraphs(model),
            "3 tensors inside an If, Loop or Scan (V, …) are not trained, as only those of the "
            "main graph are");
}

TEST(ControlFlow, MatricesInConstantNodesInsideAreNamedAsNotTrained) {
  const auto noted = [](HostTensor value) {
    const ModelParts own = body(
        {node_part("Constant", {}, {"K"}, {OnnxAttribute::of_tensor("value", std::move(value))}),
         node_part("MatMul", {"x", "K"}, {"t"})},
        {}, {"t"});
    const ModelParts other = body({node_part("Relu", {"x"}, {"e"})}, {}, {"e"});
    return note_on_tensors_in_subgraphs(model_of(node_part("If", {"c"}, {"y"}) +
                                                 graph_attribute("then_branch", own) +
                                                 graph_attribute("else_branch", other)));
  };
  EXPECT_EQ(noted(weight()),
            "a tensor inside an If, Loop or Scan (K) is not trained, as only those of the main "
            "graph are");
  EXPECT_EQ(noted(test::floats({2}, {1, 0.5F})), "");  // as the scales of a Resize
  EXPECT_EQ(noted(test::floats({1, 1}, {1})), "");
  EXPECT_EQ(noted(test::int64s({2, 1}, {1, 2})), "");
}

TEST(ControlFlow, AWeightThatABranchReadsHasNoAdapter) {
  OnnxModel model = model_of(if_node("c"));
  OnnxInitializer own = *model.find_initializer("W");
  own.name = "V";
  model.initializers.push_back(std::move(own));
  for (const char* name : {"V", "W"}) {
    OnnxNode product;
    product.op_type = "MatMul";
    product.inputs = {"x", name};
    product.outputs = {std::string("x") + name};
    model.nodes.edit().push_back(std::move(product));
  }
  auto rules = classify_tensors(model, {});
  const std::vector<Adapter> adapters = add_adapters(model, rules, {.rank = 1}, 1);
  ASSERT_EQ(adapters.size(), 1U);
  EXPECT_EQ(adapters[0].weight, "V");
}

TEST(ControlFlow, AKnownCountUnrolls) {
  const TrainingGraph training = lowered(model_of(loop_node("n")));
  EXPECT_EQ(ops_of(training), "MatMul MatMul MatMul ");
  // (1, 2) W = (0, 4.5), W of that = (-2.25, 9), and of that (-6.75, 16.875)
  EXPECT_EQ(run(training, test::floats({1, 2}, {1, 2})), (std::vector<double>{-6.75, 16.875}));
  std::set<std::string> names;
  for (const Node& node : training.graph.nodes) names.insert(node.name);
  EXPECT_EQ(names.size(), 3U);
  EXPECT_EQ(training.parameters.size(), 1U);
}

// Of two layers in a loop, the second reads what the first has made of what is carried along.
TEST(ControlFlow, WeightsOfSeveralLayersInALoopAreTrained) {
  const ModelParts layers =
      body({node_part("MatMul", {"s", "V"}, {"h"}), node_part("Relu", {"h"}, {"r"}),
            node_part("MatMul", {"r", "W"}, {"t"}), node_part("Identity", {"go"}, {"still"})},
           {"i", "go", "s"}, {"still", "t"});
  ModelParts parts;
  parts.opsets = {encode_opset("", 17)};
  HostTensor weights(TensorType{DType::kFloat32, {2, 2}});
  float next = 0.3F;
  for (float& x : weights.span<float>()) x = next = 3.6F * next * (1 - next);
  parts.initializers = {encode_tensor("n", HostTensor::scalar<std::int64_t>(2)),
                        encode_tensor("V", weights), encode_tensor("W", weights)};
  parts.inputs = {value_part("x", DType::kFloat32, {{"batch", -1}, {"", 2}})};
  parts.outputs = {value_part("y", DType::kFloat32, {{"batch", -1}, {"", 2}})};
  parts.nodes = {node_part("Loop", {"n", "", "x"}, {"y"}) + graph_attribute("body", layers)};
  const std::string bytes = parts.bytes();
  const TrainingGraph training =
      lowered(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}));
  EXPECT_EQ(training.parameters.size(), 2U);
}

// A Loop that carries nothing may leave its condition out; each round's result is stacked.
TEST(ControlFlow, ALoopMayCarryNothing) {
  const ModelParts round =
      body({node_part("Relu", {"x"}, {"e"}), node_part("Identity", {"go"}, {"still"})}, {"i", "go"},
           {"still", "e"});
  for (const std::vector<std::string>& inputs :
       {std::vector<std::string>{"n"}, {"n", ""}, {"n", "c"}}) {
    const std::string loop = node_part("Loop", inputs, {"rounds"}) + graph_attribute("body", round);
    ModelParts parts;
    parts.opsets = {encode_opset("", 17)};
    parts.initializers = {encode_tensor("n", HostTensor::scalar<std::int64_t>(3)),
                          encode_tensor("c", HostTensor::scalar(true))};
    parts.inputs = {value_part("x", DType::kFloat32, {{"batch", -1}, {"", 2}})};
    parts.outputs = {value_part("y", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 2}})};
    parts.nodes = {loop, node_part("Transpose", {"rounds"}, {"y"},
                                   {OnnxAttribute::of_ints("perm", {1, 0, 2})})};
    const std::string bytes = parts.bytes();
    const TrainingGraph training =
        lowered(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {}));
    EXPECT_EQ(run(training, test::floats({1, 2}, {-1, 2})),
              (std::vector<double>{0, 2, 0, 2, 0, 2}));
  }
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

/// x (batch, 4) -> the nodes -> y, with the numbers two, last (-1), and sizes (1, 3).
OnnxModel sequence_model(std::vector<std::string> nodes) {
  ModelParts parts;
  parts.opsets = {encode_opset("", 18)};
  HostTensor sizes(TensorType{DType::kInt64, {2}});
  sizes.span<std::int64_t>()[0] = 1;
  sizes.span<std::int64_t>()[1] = 3;
  parts.initializers = {encode_tensor("sizes", sizes),
                        encode_tensor("one", HostTensor::scalar<std::int64_t>(1)),
                        encode_tensor("two", HostTensor::scalar<std::int64_t>(2)),
                        encode_tensor("last", HostTensor::scalar<std::int64_t>(-1))};
  parts.inputs = {value_part("x", DType::kFloat32, {{"batch", -1}, {"", 4}})};
  parts.outputs = {value_part("y", DType::kFloat32, {})};
  parts.nodes = std::move(nodes);
  const std::string bytes = parts.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TEST(Sequences, AreWhatIsKnownOfThem) {
  const OnnxAttribute along_columns = OnnxAttribute::of_int("axis", 1);
  const ModelParts there =
      body({node_part("OptionalGetElement", {"maybe"}, {"got"}), node_part("Neg", {"got"}, {"n"})},
           {}, {"n"});
  const ModelParts nothing = body({node_part("Relu", {"x"}, {"r"})}, {}, {"r"});
  const TrainingGraph training = lowered(sequence_model(
      {node_part("SplitToSequence", {"x", "sizes"}, {"parts"}, {along_columns}),
       node_part("SequenceAt", {"parts", "last"}, {"right"}),
       node_part("Optional", {"right"}, {"maybe"}),
       node_part("OptionalHasElement", {"maybe"}, {"has"}),
       node_part("If", {"has"}, {"minus"}) + graph_attribute("then_branch", there) +
           graph_attribute("else_branch", nothing),
       node_part("SequenceInsert", {"parts", "minus"}, {"three"}),        // left, right, -right
       node_part("SequenceInsert", {"three", "right", "one"}, {"four"}),  // left, right, right, …
       node_part("SequenceErase", {"four", "two"}, {"erased"}),           // left, right, -right
       node_part("Identity", {"erased"}, {"same"}),
       node_part("SequenceErase", {"same"}, {"shorter"}),
       node_part("SequenceLength", {"shorter"}, {"length"}),
       node_part("Cast", {"length"}, {"count"}, {OnnxAttribute::of_int("to", 1)}),
       node_part("ConcatFromSequence", {"same"}, {"row"}, {along_columns}),
       node_part("Mul", {"row", "count"}, {"y"})}));
  EXPECT_EQ(run(training, test::floats({1, 4}, {1, 2, 3, 4})),
            (std::vector<double>{2, 4, 6, 8, -4, -6, -8}));
  // Parts of two, and elements without their axis along a new one.
  const TrainingGraph other = lowered(sequence_model(
      {node_part("SplitToSequence", {"x", "two"}, {"pairs"}, {along_columns}),
       node_part("SequenceAt", {"pairs", "last"}, {"pair"}),
       node_part("SplitToSequence", {"pair"}, {"numbers"},
                 {along_columns, OnnxAttribute::of_int("keepdims", 0)}),
       node_part("ConcatFromSequence", {"numbers"}, {"y"},
                 {OnnxAttribute::of_int("axis", 0), OnnxAttribute::of_int("new_axis", 1)})}));
  EXPECT_EQ(other.graph[other.outputs[0]].type.shape, (Shape{2, 1}));
  EXPECT_EQ(run(other, test::floats({1, 4}, {1, 2, 3, 4})), (std::vector<double>{3, 4}));
}

// As PyTorch's exporter writes EmbeddingBag.
TEST(Sequences, AreCarriedByLoopsAndChosenByBranches) {
  const OnnxAttribute along_columns = OnnxAttribute::of_int("axis", 1);
  const ModelParts grown =
      body({node_part("SequenceInsert", {"s", "row"}, {"longer"})}, {}, {"longer"});
  const ModelParts same = body({node_part("Identity", {"s"}, {"as_it_is"})}, {}, {"as_it_is"});
  const ModelParts round =
      body({node_part("Cast", {"i"}, {"number"}, {OnnxAttribute::of_int("to", 1)}),
            node_part("Add", {"x", "number"}, {"row"}),
            node_part("If", {"go"}, {"next"}) + graph_attribute("then_branch", grown) +
                graph_attribute("else_branch", same),
            node_part("Identity", {"go"}, {"still"})},
           {"i", "go", "s"}, {"still", "next"});
  const auto loop = [&](const ModelParts& inner) {
    return node_part("Loop", {"two", "", "nothing"}, {"rows"}) + graph_attribute("body", inner);
  };
  const std::string empty = node_part("SequenceEmpty", {}, {"nothing"});
  const TrainingGraph training = lowered(sequence_model(
      {empty, loop(round), node_part("ConcatFromSequence", {"rows"}, {"y"}, {along_columns})}));
  EXPECT_EQ(run(training, test::floats({1, 4}, {1, 2, 3, 4})),
            (std::vector<double>{1, 2, 3, 4, 2, 3, 4, 5}));
  const ModelParts wrong =
      body({node_part("Identity", {"s"}, {"still"})}, {"i", "go", "s"}, {"still", "still"});
  const OnnxModel refused = sequence_model(
      {empty, loop(wrong), node_part("ConcatFromSequence", {"rows"}, {"y"}, {along_columns})});
  test::expect_error(ErrorKind::kModel, "where a tensor is required", [&] { lowered(refused); });
}

TEST(Sequences, WhatIsNotKnownIsRefused) {
  const auto refused = [](std::vector<std::string> nodes, std::string_view text) {
    const OnnxModel model = sequence_model(std::move(nodes));
    test::expect_error(ErrorKind::kModel, text, [&] { lowered(model); });
  };
  const std::string split = node_part("SplitToSequence", {"x"}, {"s"});
  const std::string place =
      node_part("ReduceSum", {"x"}, {"sum"}, {OnnxAttribute::of_int("keepdims", 0)});
  refused({split, place, node_part("Cast", {"sum"}, {"at"}, {OnnxAttribute::of_int("to", 7)}),
           node_part("SequenceAt", {"s", "at"}, {"y"})},
          "must be known before training");
  refused({split, node_part("SequenceAt", {"s", "two"}, {"y"})},
          "index 2 is out of range for a sequence of length 1");
  refused({split, node_part("Relu", {"s"}, {"y"})}, "is a sequence or optional");
  refused({split, node_part("Identity", {"s"}, {"y"})}, "results of a model must be tensors");
  refused({node_part("SequenceAt", {"x", "one"}, {"y"})}, "is no sequence");
  refused({node_part("SequenceEmpty", {}, {"s"}), node_part("SequenceErase", {"s"}, {"t"}),
           node_part("SequenceLength", {"t"}, {"y"})},
          "its sequence is empty");
  refused({node_part("Optional", {}, {"o"}), node_part("OptionalGetElement", {"o"}, {"y"})},
          "has no element");
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
  const ModelParts odd = body({node_part("StringConcat", {"x", "x"}, {"t"})}, {}, {"t"});
  const std::string node = node_part("If", {"c"}, {"y"}) + graph_attribute("then_branch", odd) +
                           graph_attribute("else_branch", odd);
  test::expect_error(ErrorKind::kModel, "StringConcat", [&] { lowered(model_of(node)); });
}

}  // namespace
}  // namespace pipetrain
