#include "graph/builder.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

ValueId input(GraphBuilder& builder, Shape shape) {
  Value value;
  value.name = "x";
  value.type = {DType::kFloat32, std::move(shape)};
  value.role = Role::kInput;
  return builder.add_value(std::move(value));
}

TEST(Builder, InfersTypesAndKeepsTheOrder) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  const ValueId x = input(builder, {2, 3});
  const ValueId y = builder.add("Transpose", {builder.add("Relu", {x})}, {{"perm", Ints{1, 0}}});
  EXPECT_EQ(builder.shape(y), (Shape{3, 2}));
  EXPECT_EQ(graph.nodes.size(), 2U);
  graph.verify();
  std::swap(graph.nodes[0], graph.nodes[1]);
  EXPECT_THROW(graph.verify(), Error);
}

// As of a node that a pass has replaced.
TEST(Builder, AProducerHasItsValueAmongItsOutputs) {
  for (const int producer : {0, 1}) {
    Graph graph;
    GraphBuilder builder = make_builder(graph);
    builder.add("Relu", {input(builder, {2})});
    const ValueId unused = input(builder, {2});
    graph.verify();
    graph[unused].producer = {producer};
    EXPECT_THROW(graph.verify(), Error) << producer;
  }
}

TEST(Builder, FoldsConstantsButNothingThatDependsOnAParameter) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  const ValueId two = builder.scalar(2), three = builder.scalar(3);
  const ValueId six = builder.add("Mul", {two, three});
  EXPECT_TRUE(graph.nodes.empty());
  EXPECT_EQ(graph[six].data.span<float>()[0], 6);
  Value parameter;
  parameter.name = "w";
  parameter.type = {DType::kFloat32, Shape{}};
  parameter.role = Role::kParameter;
  parameter.data = HostTensor::scalar<float>(1);
  builder.add("Mul", {six, builder.add_value(std::move(parameter))});
  EXPECT_EQ(graph.nodes.size(), 1U);
}

TEST(Builder, ErrorsNameOperatorAndNode) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  builder.set_origin("block/mul", Part::kForward);
  try {
    builder.add("Mul", {input(builder, {2, 3}), input(builder, {2, 4})});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("while adding Mul for node block/mul"),
              std::string::npos)
        << error.what();
  }
}

TEST(Attributes, TypedAccess) {
  Attributes attributes = {
      {"axis", std::int64_t{1}}, {"pads", Ints{1, 2}}, {"mode", std::string("edge")}};
  EXPECT_EQ(attributes.integer("axis"), 1);
  EXPECT_EQ(attributes.integer("missing", 7), 7);
  EXPECT_EQ(attributes.text("mode", ""), "edge");
  EXPECT_THROW(attributes.integer("missing"), Error);
  EXPECT_THROW(attributes.ints("axis"), Error);
  EXPECT_EQ(attributes.to_text(), "{axis: 1, pads: [1, 2], mode: \"edge\"}");
  attributes.set("axis", 0.5);  // the last value wins, whatever its type
  EXPECT_EQ(attributes.to_text(), "{axis: 0.5, pads: [1, 2], mode: \"edge\"}");
}

}  // namespace
}  // namespace pipetrain
