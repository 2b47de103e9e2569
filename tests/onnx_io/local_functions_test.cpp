#include "onnx_io/local_functions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "onnx_io/encode.h"
#include "onnx_io/reader.h"
#include "support/onnx_parts.h"

namespace pipetrain {
namespace {

using Names = std::vector<std::string>;

std::string call(const std::string& function, Names inputs, Names outputs,
                 std::vector<OnnxAttribute> attributes = {}, const std::string& name = {}) {
  return node_part(function, std::move(inputs), std::move(outputs), std::move(attributes), name,
                   "d");
}

std::string reference(const std::string& name, std::int64_t type, const std::string& source) {
  return field(5, field(1, name) + field(20, type) + field(21, source));
}

OnnxModel read(Names nodes, Names functions) {
  ModelParts parts = small_model();
  parts.nodes = std::move(nodes);
  parts.functions = std::move(functions);
  parts.opsets.push_back(encode_opset("d", 1));
  const std::string bytes = parts.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes)), {});
}

TEST(LocalFunctionsTest, ACallBecomesTheBodyWithItsNames) {
  const OnnxModel model = read(
      {call("Twice", {"x"}, {"m"}, {}, "first"), call("Twice", {"m"}, {"y"}, {}, "second")},
      {function_part("d", "Twice", {"a"}, {"b"},
                     {node_part("Relu", {"a"}, {"t"}, {}, "r"), node_part("Neg", {"t"}, {"b"})})});
  ASSERT_EQ(model.nodes.size(), 4U);
  EXPECT_EQ(model.nodes[0].inputs, Names{"x"});
  EXPECT_EQ(model.nodes[0].outputs, Names{"first/t"});
  EXPECT_EQ(model.nodes[0].name, "first/r");
  EXPECT_EQ(model.nodes[1].outputs, Names{"m"});
  EXPECT_EQ(model.nodes[2].outputs, Names{"second/t"});
  EXPECT_EQ(model.nodes[3].outputs, Names{"y"});
  EXPECT_EQ(model.nodes[3].function, "d::Twice");
  EXPECT_EQ(model.nodes[3].file_index, 1U);
  EXPECT_EQ(model.inlined.at("d::Twice"), 2U);
}

TEST(LocalFunctionsTest, NamesOfTheGraphAreNotTakenTwice) {
  const OnnxModel model =
      read({node_part("Relu", {"x"}, {"f/t"}), call("F", {"f/t"}, {"y"}, {}, "f")},
           {function_part("d", "F", {"a"}, {"b"},
                          {node_part("Relu", {"a"}, {"t"}), node_part("Neg", {"t"}, {"b"})})});
  EXPECT_EQ(model.nodes[1].outputs, Names{"f/t_1"});
  EXPECT_EQ(model.nodes[2].inputs, Names{"f/t_1"});
}

TEST(LocalFunctionsTest, FunctionsCallFunctions) {
  const OnnxModel model =
      read({call("Outer", {"x"}, {"y"})},
           {function_part("d", "Outer", {"a"}, {"b"},
                          {call("Inner", {"a"}, {"t"}), call("Inner", {"t"}, {"b"})}),
            function_part("d", "Inner", {"a"}, {"b"}, {node_part("Relu", {"a"}, {"b"})})});
  ASSERT_EQ(model.nodes.size(), 2U);
  EXPECT_EQ(model.nodes[0].outputs, model.nodes[1].inputs);
  EXPECT_EQ(model.inlined.at("d::Inner"), 2U);
}

TEST(LocalFunctionsTest, AttributesComeFromTheCallOrByDefaultOrNotAtAll) {
  const std::string softmax = node_part("Softmax", {"a"}, {"b"}) + reference("axis", 2, "k");
  const auto axis = [&](std::vector<OnnxAttribute> given, const std::string& defaults) {
    const OnnxModel model = read({call("F", {"x"}, {"y"}, std::move(given))},
                                 {function_part("d", "F", {"a"}, {"b"}, {softmax}) + defaults});
    return model.nodes[0].int_attribute("axis", -100);
  };
  const std::string seven = field(11, encode_attribute(OnnxAttribute::of_int("k", 7)));
  EXPECT_EQ(axis({OnnxAttribute::of_int("k", 3)}, seven), 3);
  EXPECT_EQ(axis({}, seven), 7);
  EXPECT_EQ(axis({}, ""), -100);
}

TEST(LocalFunctionsTest, AttributesPassThroughNestedCalls) {
  const OnnxModel model = read(
      {call("Outer", {"x"}, {"y"}, {OnnxAttribute::of_int("k", 5)})},
      {function_part("d", "Outer", {"a"}, {"b"},
                     {call("Inner", {"a"}, {"b"}) + reference("j", 2, "k")}, {"k"}),
       function_part("d", "Inner", {"a"}, {"b"},
                     {node_part("Softmax", {"a"}, {"b"}) + reference("axis", 2, "j")}, {"j"})});
  EXPECT_EQ(model.nodes[0].int_attribute("axis"), 5);
}

TEST(LocalFunctionsTest, AbsentArgumentsStayAbsent) {
  const OnnxModel model = read(
      {call("F", {"x"}, {"y"}), call("F", {"x", ""}, {"", "z"})},
      {function_part("d", "F", {"a", "low"}, {"b", "c"},
                     {node_part("Clip", {"a", "low"}, {"b"}), node_part("Relu", {"b"}, {"c"})})});
  ASSERT_EQ(model.nodes.size(), 4U);
  EXPECT_EQ(model.nodes[0].inputs, (Names{"x", ""}));
  EXPECT_EQ(model.nodes[2].inputs, (Names{"x", ""}));
  EXPECT_EQ(model.nodes[3].outputs, Names{"z"});
  EXPECT_FALSE(model.nodes[1].outputs[0].empty()) << "an output that nobody asked for has a name";
}

TEST(LocalFunctionsTest, AnInputThatIsReturnedTakesAnIdentity) {
  const OnnxModel model =
      read({call("F", {"x"}, {"y", "z"})},
           {function_part("d", "F", {"a"}, {"a", "b"}, {node_part("Relu", {"a"}, {"b"})})});
  ASSERT_EQ(model.nodes.size(), 2U);
  const auto identity = std::ranges::find(model.nodes, "Identity", &OnnxNode::op_type);
  ASSERT_NE(identity, model.nodes.end());
  EXPECT_EQ(identity->inputs, Names{"x"});
  EXPECT_EQ(identity->outputs, Names{"y"});
}

TEST(LocalFunctionsTest, TheFunctionsOwnOpsetHoldsInside) {
  std::string function = field(1, "F") + field(4, "a") + field(5, "b") +
                         field(7, node_part("Softmax", {"a"}, {"b"})) +
                         field(9, encode_opset("", 11)) + field(10, "d");
  const OnnxModel model =
      read({call("F", {"x"}, {"t"}), node_part("Softmax", {"t"}, {"y"})}, {std::move(function)});
  EXPECT_EQ(model.nodes[0].opset, 11);
  EXPECT_EQ(model.nodes[1].opset, 17);
}

TEST(LocalFunctionsTest, OverloadsAreDifferentFunctions) {
  const auto overloaded = [](const std::string& op, const std::string& overload) {
    return function_part("d", "F", {"a"}, {"b"}, {node_part(op, {"a"}, {"b"})}) +
           field(13, overload);
  };
  const OnnxModel model =
      read({call("F", {"x"}, {"t"}) + field(8, "two"), call("F", {"t"}, {"y"}) + field(8, "one")},
           {overloaded("Relu", "one"), overloaded("Neg", "two")});
  EXPECT_EQ(model.nodes[0].op_type, "Neg");
  EXPECT_EQ(model.nodes[1].op_type, "Relu");
}

// A call looks up all inputs of its function, also those that it does not give.
TEST(LocalFunctionsTest, ManyInputsOfManyCallsAreRefused) {
  LocalFunction function;
  function.domain = "d";
  function.name = "F";
  for (int i = 0; i < 10'000; ++i) function.inputs.push_back("a" + std::to_string(i));
  function.outputs = {"b"};
  FileNode relu;
  relu.node.op_type = "Relu";
  relu.node.inputs = {"a0"};
  relu.node.outputs = {"b"};
  function.nodes = {relu};
  FileNode use;
  use.node.op_type = "F";
  use.node.domain = "d";
  use.node.inputs = {"x"};
  use.node.outputs = {"y"};
  const auto inlined = [&](std::size_t calls) {
    return inline_functions(std::vector<FileNode>(calls, use), {function}, {}, {},
                            {.bytes = std::size_t{16} << 20});
  };
  EXPECT_EQ(inlined(3).nodes.size(), 3U);
  EXPECT_THROW(inlined(100), Error);
}

// Nodes know their function by its label, by which export finds what it writes to.
TEST(LocalFunctionsTest, FunctionsOfOneLabelAreRefused) {
  const auto function = [](const std::string& name, const std::string& op) {
    return function_part("d", name, {"a"}, {"b"}, {node_part(op, {"a"}, {"b"})});
  };
  try {
    read({call("f", {"x"}, {"t"}) + field(8, "x"), call("f:x", {"t"}, {"y"})},
         {function("f", "Relu") + field(13, "x"), function("f:x", "Neg")});
    ADD_FAILURE() << "two functions of one label were read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    EXPECT_NE(error.message().find("two local functions are both called d::f:x"), std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace pipetrain
