// What a Squeeze without axes removes does not depend on the size of the micro-batch.
#include "passes/squeezed_shapes.h"

#include <gtest/gtest.h>

#include "passes/lower.h"
#include "support/parameter_models.h"

namespace pipetrain::test {
namespace {

/// With an input x of `batch` samples (-1: any number) of 1 x 4, a weight w and an output y.
OnnxBuilder with_weight(Shape weight, std::int64_t batch = -1) {
  OnnxBuilder builder("squeezed");
  builder.input("x", DType::kFloat32, {{batch < 0 ? "batch" : "", batch}, {"", 1}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("w", scattered(std::move(weight)));
  return builder;
}

std::string output_shape(const OnnxBuilder& builder, std::int64_t samples) {
  const OnnxModel model = parsed(builder);
  LowerOptions options;
  options.micro_batch = samples;
  const TrainingGraph training = lower(model, classify_tensors(model, {}), options);
  return training.graph[training.outputs.at(0)].type.shape.text();
}

TEST(SqueezedShapes, ASampleKeepsItsAxis) {
  OnnxBuilder scores = with_weight({4, 1});
  scores.node("MatMul", {"x", "w"}, {"scores"});  // (samples, 1, 1)
  scores.node("Squeeze", {"scores"}, {"y"});
  EXPECT_EQ(output_shape(scores, 3), "(3)");
  EXPECT_EQ(output_shape(scores, 1), "(1)");
}

TEST(SqueezedShapes, WhereverItsAxisIs) {
  OnnxBuilder turned = with_weight({4, 2});
  turned.node("Transpose", {"x"}, {"t"}, {OnnxAttribute::of_ints("perm", {1, 0, 2})});
  turned.node("MatMul", {"t", "w"}, {"scores"});  // (1, samples, 2)
  turned.node("Squeeze", {"scores"}, {"y"});
  EXPECT_EQ(output_shape(turned, 3), "(3, 2)");
  EXPECT_EQ(output_shape(turned, 1), "(1, 2)");
}

TEST(SqueezedShapes, WeightsAndSumsOverSamplesLoseAllAxes) {
  OnnxBuilder weights = with_weight({1, 4, 1});
  weights.node("Squeeze", {"w"}, {"vector"});
  weights.node("MatMul", {"x", "vector"}, {"y"});
  EXPECT_EQ(output_shape(weights, 3), "(3, 1)");
  EXPECT_EQ(output_shape(weights, 1), "(1, 1)");
  OnnxBuilder mean = with_weight({4, 4});
  mean.node("MatMul", {"x", "w"}, {"h"});
  mean.node("ReduceMean", {"h"}, {"m"}, {OnnxAttribute::of_int("keepdims", 1)});
  mean.node("Squeeze", {"m"}, {"y"});
  EXPECT_EQ(output_shape(mean, 3), "()");
  EXPECT_EQ(output_shape(mean, 1), "()");
}

// The file says what it computes.
TEST(SqueezedShapes, AModelOfOneSampleIsLeftAsItIs) {
  OnnxBuilder scores = with_weight({4, 1}, 1);
  scores.node("MatMul", {"x", "w"}, {"scores"});
  scores.node("Squeeze", {"scores"}, {"y"});
  EXPECT_EQ(output_shape(scores, 1), "()");
}

TEST(SqueezedShapes, AxesOfOneElementInBoth) {
  const Shape two{2, 1, 1, 3}, other{2, 1};
  EXPECT_EQ(squeezed({1, 1, 1, 3}, &two).text(), "(1, 3)");
  EXPECT_EQ(squeezed({1, 1, 1, 3}, &other).text(), "(3)");
  EXPECT_EQ(squeezed({1, 1, 1, 3}, nullptr).text(), "(3)");
}

}  // namespace
}  // namespace pipetrain::test
