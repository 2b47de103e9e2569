#include "passes/adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "support/parameter_models.h"

namespace pipetrain::test {
namespace {

/// Two branches of linear layers: Gemm with a weight (outputs, inputs), then MatMul with one
/// (inputs, outputs) and one that is transposed first.
OnnxModel linear_layers() {
  OnnxBuilder builder("linear");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("enc.fc.weight", scattered({5, 6}));
  builder.initializer("enc.fc.bias", scattered({5}));
  builder.initializer("q", scattered({5, 4}));
  builder.initializer("dec.out.weight", scattered({3, 4}));
  builder.node("Gemm", {"x", "enc.fc.weight", "enc.fc.bias"}, {"h"},
               {OnnxAttribute::of_int("transB", 1)}, "fc");
  builder.node("MatMul", {"h", "q"}, {"k"}, {}, "/dec/q_proj/MatMul");
  builder.node("Transpose", {"dec.out.weight"}, {"t"}, {OnnxAttribute::of_ints("perm", {1, 0})});
  builder.node("MatMul", {"k", "t"}, {"y"}, {}, "out");
  return parsed(builder);
}

const Adapter* adapter_of(const std::vector<Adapter>& adapters, const std::string& weight) {
  const auto found = std::ranges::find(adapters, weight, &Adapter::weight);
  return found == adapters.end() ? nullptr : &*found;
}

struct Adapted {
  OnnxModel model;
  std::map<std::string, TensorRule> rules;
  std::vector<Adapter> adapters;
};

Adapted adapt(OnnxModel model, const AdapterOptions& options, std::uint64_t seed = 1) {
  Adapted out{std::move(model), {}, {}};
  out.rules = classify_tensors(out.model, {});
  out.adapters = add_adapters(out.model, out.rules, options, seed);
  return out;
}

TEST(Adapters, EveryLinearLayerHasOneAndNothingElseIsTrained) {
  const Adapted adapted = adapt(linear_layers(), {.rank = 2, .alpha = 3});
  ASSERT_EQ(adapted.adapters.size(), 3U);
  const Adapter& fc = *adapter_of(adapted.adapters, "enc.fc.weight");
  EXPECT_EQ(fc.module, "enc.fc");
  EXPECT_EQ(fc.a, "enc.fc.lora_A.weight");
  EXPECT_TRUE(fc.outputs_first);
  EXPECT_EQ(fc.scale, 1.5);
  const Adapter& q = *adapter_of(adapted.adapters, "q");
  EXPECT_EQ(q.module, "dec.q_proj");  // by the node's name
  EXPECT_FALSE(q.outputs_first);
  EXPECT_TRUE(adapter_of(adapted.adapters, "dec.out.weight")->outputs_first);
  EXPECT_EQ(adapted.model.find_initializer(q.a)->shape, (Shape{2, 5}));
  EXPECT_EQ(adapted.model.find_initializer(q.b)->shape, (Shape{4, 2}));
  for (const auto& [name, rule] : adapted.rules) {
    const bool adapter = name.find(".lora_") != std::string::npos;
    EXPECT_EQ(rule.use, adapter ? TensorUse::kTrained : TensorUse::kFrozen) << name;
  }
}

TEST(Adapters, BeginWithoutAnEffectAndByTheSeed) {
  const auto values = [](const Adapted& adapted, const std::string& name) {
    return adapted.model.find_initializer(name)->value.to_doubles();
  };
  const Adapted one = adapt(linear_layers(), {.rank = 2}),
                same = adapt(linear_layers(), {.rank = 2}),
                other = adapt(linear_layers(), {.rank = 2}, 2);
  for (const Adapter& adapter : one.adapters) {
    const std::vector<double> a = values(one, adapter.a), b = values(one, adapter.b);
    EXPECT_EQ(a, values(same, adapter.a));
    EXPECT_NE(a, values(other, adapter.a));
    const auto inputs = static_cast<double>(one.model.find_initializer(adapter.a)->shape[1]);
    const double largest =
        std::abs(*std::ranges::max_element(a, {}, [](double x) { return std::abs(x); }));
    EXPECT_LE(largest, 1 / std::sqrt(inputs));
    EXPECT_GT(largest, 0.4 / std::sqrt(inputs));
    EXPECT_EQ(b, std::vector<double>(b.size(), 0.0));
  }
}

TEST(Adapters, TargetsAreTensorsOrModulesAndOthersCanBeTrainedWhole) {
  const auto layers = [](const std::vector<std::string>& targets) {
    return adapt(linear_layers(), {.rank = 2, .alpha = 0, .targets = targets, .trained_whole = {}})
        .adapters.size();
  };
  EXPECT_EQ(layers({"q_proj", "fc"}), 2U);
  EXPECT_EQ(layers({"dec.*"}), 2U);
  EXPECT_EQ(layers({"q"}), 1U);
  EXPECT_THROW(layers({"q", "missing"}), Error);
  EXPECT_THROW(layers({"proj"}), Error);  // not the last part of a name
  const Adapted whole =
      adapt(linear_layers(), {.rank = 2, .alpha = 0, .targets = {}, .trained_whole = {"dec.out*"}});
  EXPECT_EQ(whole.adapters.size(), 2U);
  EXPECT_EQ(whole.rules.at("dec.out.weight").use, TensorUse::kTrained);
}

TEST(Adapters, ARankThatNoLayerHasIsRefused) {
  EXPECT_EQ(adapt(linear_layers(), {.rank = 4}).adapters.size(), 3U);  // q is 5 x 4
  for (const std::int64_t rank : {std::int64_t{1000}, std::int64_t{1'000'000'000}}) {
    try {
      adapt(linear_layers(), {.rank = rank});
      ADD_FAILURE() << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find("the highest rank is "), std::string::npos);
    }
  }
}

TEST(Adapters, AWeightThatSomethingElseReadsHasNone) {
  OnnxBuilder builder("tied");
  builder.input("x", DType::kInt64, {{"batch", -1}, {"", 6}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("table.weight", scattered({9, 4}));
  builder.initializer("fc.weight", scattered({4, 4}));
  builder.node("Gather", {"table.weight", "x"}, {"e"});
  builder.node("MatMul", {"e", "fc.weight"}, {"h"});
  builder.node("Transpose", {"table.weight"}, {"t"}, {OnnxAttribute::of_ints("perm", {1, 0})});
  builder.node("MatMul", {"h", "t"}, {"y"});
  const Adapted adapted = adapt(parsed(builder), {.rank = 2});
  ASSERT_EQ(adapted.adapters.size(), 1U);
  EXPECT_EQ(adapted.adapters[0].weight, "fc.weight");
}

TEST(Adapters, NodesWithoutOutputsAreNoLayers) {
  OnnxBuilder builder("outputs");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("fc.weight", scattered({4, 4}));
  builder.initializer("turned.weight", scattered({4, 4}));
  builder.initializer("unused.weight", scattered({4, 4}));
  builder.node("MatMul", {"x", "fc.weight"}, {"h"});
  builder.node("MatMul", {"h", "turned.weight"}, {"y"});
  builder.node("Transpose", {"turned.weight"}, {}, {OnnxAttribute::of_ints("perm", {1, 0})});
  builder.node("MatMul", {"h", "unused.weight"}, {});
  const Adapted adapted = adapt(parsed(builder), {.rank = 2});
  ASSERT_EQ(adapted.adapters.size(), 1U);
  EXPECT_EQ(adapted.adapters[0].weight, "fc.weight");
}

// As PaddlePaddle's exporter stores weights.
TEST(Adapters, WeightsInConstantNodesHaveNoneAndAreFrozenBesideOthers) {
  const auto model = [](bool all) {
    OnnxBuilder builder("constants");
    builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
    builder.output("y", DType::kFloat32, {});
    builder.node("Constant", {}, {"linear_1.w_0"},
                 {OnnxAttribute::of_tensor("value", scattered({4, 4}))});
    builder.node("MatMul", {"x", "linear_1.w_0"}, {"h"});
    if (!all) builder.initializer("fc.weight", scattered({4, 4}));
    builder.node("MatMul", {"h", all ? "linear_1.w_0" : "fc.weight"}, {"y"});
    return parsed(builder);
  };
  EXPECT_EQ(classify_tensors(model(false), {}).at("linear_1.w_0").use, TensorUse::kTrained);
  const Adapted adapted = adapt(model(false), {.rank = 2});
  ASSERT_EQ(adapted.adapters.size(), 1U);
  EXPECT_EQ(adapted.adapters[0].weight, "fc.weight");
  const TensorRule& rule = adapted.rules.at("linear_1.w_0");
  EXPECT_EQ(rule.use, TensorUse::kFrozen);
  EXPECT_NE(rule.reason.find("Constant"), std::string::npos) << rule.reason;
  const Adapted whole =
      adapt(model(false), {.rank = 2, .alpha = 0, .targets = {}, .trained_whole = {"linear_1*"}});
  EXPECT_EQ(whole.rules.at("linear_1.w_0").use, TensorUse::kTrained);
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{}, std::vector<std::string>{"linear_1*"}}) {
    try {
      adapt(model(true), {.rank = 2, .alpha = 0, .targets = targets, .trained_whole = {}});
      ADD_FAILURE() << "a model without initializers got adapters";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find("Constant nodes cannot have adapters"), std::string::npos)
          << error.message();
    }
  }
}

TEST(Adapters, MergedWeightsAreThoseOfTheDefinition) {
  // W + 2 B A for W = 0, computed by hand: B A = [[4, 5], [8, 10], [12, 15]] for B = [[1], [2],
  // [3]] and A = [[4, 5]].
  const float a[] = {4, 5}, b[] = {1, 2, 3};
  Adapter adapter{.module = "", .weight = "", .a = "", .b = "", .scale = 2, .outputs_first = true};
  const HostTensor left = HostTensor::of<float>({1, 2}, a),
                   right = HostTensor::of<float>({3, 1}, b);
  const HostTensor merged =
      merged_weight(adapter, HostTensor(TensorType{DType::kFloat32, {3, 2}}), left, right);
  EXPECT_EQ(merged.to_doubles(), (std::vector<double>{8, 10, 16, 20, 24, 30}));
  adapter.outputs_first = false;
  const HostTensor transposed =
      merged_weight(adapter, HostTensor(TensorType{DType::kFloat32, {2, 3}}), left, right);
  EXPECT_EQ(transposed.to_doubles(), (std::vector<double>{8, 16, 24, 10, 20, 30}));
}

}  // namespace
}  // namespace pipetrain::test
