#include "train/fresh_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

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

// A norm that is not trained keeps its running statistics: they belong to the weights before it.
TEST(FreshWeights, LeaveTheStatisticsOfFrozenNormsAlone) {
  const TemporaryDirectory folder;
  OnnxBuilder builder("norms");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 16}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 6}});
  std::string from = "x";
  std::int64_t inputs = 16;
  for (const std::string& norm : {std::string("first"), std::string("second")}) {
    const std::int64_t outputs = norm == "first" ? 8 : 6;
    builder.initializer(norm + ".linear", test::scattered({inputs, outputs}));
    std::vector<std::string> read = {norm + ".h"};
    for (const char* part : {".gain", ".shift", ".mean", ".variance"}) {
      read.push_back(norm + part);
      builder.initializer(read.back(), test::scattered({outputs}));
      if (norm == "first") {
        builder.node("Cast", {read.back()}, {read.back() + ".cast"},
                     {OnnxAttribute::of_int("to", 1)});
        read.back() += ".cast";
      }
    }
    builder.node("MatMul", {from, norm + ".linear"}, {norm + ".h"}, {}, norm + ".matmul");
    from = norm == "first" ? "n" : "y";
    builder.node("BatchNormalization", read, {from}, {}, norm);
    inputs = outputs;
  }
  builder.write(folder / "m.onnx");
  const auto names_with = [&](const ParameterOptions& parameters, int rank = 0) {
    ModelConfig config;
    config.path = (folder / "m.onnx").string();
    config.parameters = parameters;
    config.adapters.rank = rank;
    std::set<std::string> names;
    for (const auto& [name, value] : fresh_weights(load_model(config), 1)) names.insert(name);
    return names;
  };
  const std::set<std::string> second = {"second.linear", "second.gain", "second.shift",
                                        "second.mean", "second.variance"};
  std::set<std::string> all = second;
  for (const std::string& name : second) all.insert("first" + name.substr(6));
  EXPECT_EQ(names_with({}), all);
  EXPECT_EQ(names_with({.freeze = {"first.*"}, .train_only = {}}), second);
  EXPECT_EQ(names_with({.freeze = {}, .train_only = {"second.*"}}), second);
  // Weights before a norm that is trained.
  std::set<std::string> but_one = all;
  but_one.erase("first.linear");
  EXPECT_EQ(names_with({.freeze = {"first.linear"}, .train_only = {}}), but_one);
  EXPECT_EQ(names_with({}, /*rank=*/2), std::set<std::string>());
  // A norm of which a part is trained.
  std::set<std::string> but_shift = all;
  but_shift.erase("first.shift");
  EXPECT_EQ(names_with({.freeze = {"first.shift"}, .train_only = {}}), but_shift);
}

// A bias is drawn as the weight of its layer, which may be transposed before it is used. Beside a
// weight that is computed it is 0.
TEST(FreshWeights, BiasesFollowTheWeightsOfTheirLayers) {
  const TemporaryDirectory folder;
  OnnxBuilder builder("biases");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 16}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 64}});
  builder.initializer("first.weight", test::scattered({64, 16}));
  builder.initializer("second.weight", test::scattered({64, 64}));
  builder.initializer("second.scale", test::scattered({1, 64}));
  for (const char* name : {"first.bias", "second.bias"})
    builder.initializer(name, test::scattered({64}));
  builder.node("Identity", {"first.weight"}, {"same"}, {}, "identity");
  builder.node("Transpose", {"same"}, {"turned"}, {}, "transpose");
  builder.node("Gemm", {"x", "turned", "first.bias"}, {"h"}, {}, "first");
  builder.node("Mul", {"second.weight", "second.scale"}, {"scaled"}, {}, "scale");
  builder.node("Gemm", {"h", "scaled", "second.bias"}, {"y"}, {}, "second");
  builder.write(folder / "m.onnx");
  ModelConfig config;
  config.path = (folder / "m.onnx").string();
  const auto drawn = fresh_weights(load_model(config), 1);
  double largest = 0;
  for (const double x : drawn.at("first.bias").to_doubles())
    largest = std::max(largest, std::abs(x));
  EXPECT_LE(largest, 0.25);
  EXPECT_GT(largest, 0.2);
  EXPECT_EQ(drawn.at("second.bias").to_doubles(), std::vector<double>(64, 0));
}

}  // namespace
}  // namespace pipetrain
