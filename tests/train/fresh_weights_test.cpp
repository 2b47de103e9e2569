#include "train/fresh_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "onnx_io/builder.h"
#include "support/parameter_models.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

// As PaddlePaddle's exporter stores them: uniform within 1 / sqrt(inputs), statistics 0 and 1.
TEST(FreshWeights, AreDrawnForConstantNodesToo) {
  const TemporaryDirectory folder;
  OnnxBuilder builder("constants");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 16}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 8}});
  const auto constant = [&](const char* name, Shape shape) {
    builder.node("Constant", {}, {name},
                 {OnnxAttribute::of_tensor("value", test::scattered(std::move(shape)))});
  };
  constant("linear_0.w_0", {16, 8});
  for (const char* name : {"norm.gain", "norm.shift", "norm.mean"}) constant(name, {8});
  builder.node("Constant", {}, {"norm.variance"},
               {OnnxAttribute::of_floats("value_floats", std::vector<float>(8, 3))});
  builder.node("MatMul", {"x", "linear_0.w_0"}, {"h"}, {}, "linear");
  builder.node("BatchNormalization", {"h", "norm.gain", "norm.shift", "norm.mean", "norm.variance"},
               {"y"}, {}, "norm");
  builder.write(folder / "m.onnx");
  ModelConfig config;
  config.path = (folder / "m.onnx").string();
  const auto drawn = fresh_weights(load_model(config), 1);
  ASSERT_EQ(drawn.size(), 5U);
  EXPECT_EQ(drawn.at("linear_0.w_0").shape(), (Shape{16, 8}));
  double largest = 0;
  for (const double x : drawn.at("linear_0.w_0").to_doubles())
    largest = std::max(largest, std::abs(x));
  EXPECT_LE(largest, 0.25);
  EXPECT_GT(largest, 0.2);  // of 128 numbers
  for (const char* name : {"norm.gain", "norm.variance"})
    EXPECT_EQ(drawn.at(name).to_doubles(), std::vector<double>(8, 1)) << name;
  for (const char* name : {"norm.shift", "norm.mean"})
    EXPECT_EQ(drawn.at(name).to_doubles(), std::vector<double>(8, 0)) << name;
}

}  // namespace
}  // namespace pipetrain
