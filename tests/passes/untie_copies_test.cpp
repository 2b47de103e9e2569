// Tensors that an exporter merged have copies of their own where they were several parameters.
#include <gtest/gtest.h>

#include <utility>

#include "onnx_io/builder.h"
#include "passes/parameters.h"
#include "support/parameter_models.h"

namespace pipetrain::test {
namespace {

/// The rules for a model with copies, as the options have them.
std::map<std::string, TensorRule> rules_with(OnnxModel model, const ParameterOptions& options) {
  auto rules = classify_tensors(model, options);
  untie_copies(model, rules);
  freeze_tensors(rules, options);
  return rules;
}

TEST(UntieCopies, StatisticsMergedWithGainsComeApart) {
  OnnxBuilder builder = image_builder();
  builder.initializer("ones", equal_elements({4}, 1));
  builder.initializer("zeros", equal_elements({4}, 0));
  builder.node("Identity", {"ones"}, {"norm.running_var"});
  builder.node("BatchNormalization", {"x", "ones", "zeros", "zeros", "norm.running_var"}, {"y"}, {},
               "norm");
  OnnxModel model = parsed(builder);
  auto rules = classify_tensors(model, {});
  EXPECT_EQ(use_of(rules, "ones"), TensorUse::kTrained);
  EXPECT_EQ(use_of(rules, "zeros"), TensorUse::kTrained);
  const auto copies = untie_copies(model, rules);
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(use_of(rules, "norm.running_var"), TensorUse::kRunningStatistic);
  EXPECT_EQ(use_of(rules, "zeros@norm.3"), TensorUse::kRunningStatistic);
  EXPECT_EQ(model.nodes[0].inputs[3], "zeros@norm.3");
}

TEST(UntieCopies, MergedBiasesComeApartMatricesStayTied) {
  OnnxBuilder builder("test");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  for (const char* name : {"v", "w"}) builder.initializer(name, scattered({4, 4}));
  builder.initializer("b", equal_elements({4}, 0));
  builder.node("Gemm", {"x", "w", "b"}, {"g"}, {}, "first");
  builder.node("Gemm", {"g", "v", "b"}, {"h"}, {}, "second");
  builder.node("MatMul", {"h", "w"}, {"y"}, {}, "third");
  OnnxModel model = parsed(builder);
  auto rules = classify_tensors(model, {});
  const auto copies = untie_copies(model, rules);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].name, "b@second.2");
  EXPECT_EQ(copies[0].original, "b");
  EXPECT_EQ(copies[0].node, 1U);
  EXPECT_EQ(model.nodes[1].inputs, (std::vector<std::string>{"g", "v", "b@second.2"}));
}

/// The copies of a model of two calls of one layer, which `add` adds: of what it reads and makes,
/// and which call it is.
template <typename Add>
std::vector<std::string> copies_of_two_calls(const Add& add, const char* producer = "") {
  OnnxBuilder builder("test");
  for (const char* name : {"a", "b"})
    builder.input(name, DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("w", scattered({4, 4}));
  builder.initializer("zeros", equal_elements({4}, 0));
  builder.initializer("ones", equal_elements({4}, 1));
  add(builder, "a", "p", "first");
  add(builder, "b", "q", "second");
  builder.node("Sub", {"p", "q"}, {"y"});
  OnnxModel model = parsed(builder);
  model.producer = producer;
  auto rules = classify_tensors(model, {});
  std::vector<std::string> names;
  for (const UntiedCopy& copy : untie_copies(model, rules)) names.push_back(copy.name);
  return names;
}

// Equal matrices are no accident: where two nodes read the same one, the bias is the same, too.
TEST(UntieCopies, ALayerThatIsCalledTwiceKeepsItsBias) {
  using Names = std::vector<std::string>;
  using Text = std::string;
  EXPECT_EQ(copies_of_two_calls([](auto& builder, Text x, Text y, Text name) {
              builder.node("Gemm", {x, "w", "zeros"}, {y}, {}, name);
            }),
            Names());
  EXPECT_EQ(copies_of_two_calls([](auto& builder, Text x, Text y, Text name) {
              builder.node("MatMul", {x, "w"}, {name + ".product"}, {}, name);
              builder.node("Add", {"zeros", name + ".product"}, {y}, {}, name + ".add");
            }),
            Names());
  EXPECT_EQ(copies_of_two_calls([](auto& builder, Text x, Text y, Text name) {
              builder.node("Transpose", {"w"}, {name + ".t"}, {}, name + ".transpose");
              builder.node("Gemm", {x, name + ".t", "zeros"}, {y}, {}, name);
            }),
            Names());
  // A decoder with the weights of the encoder has a bias of its own.
  EXPECT_EQ(copies_of_two_calls([](auto& builder, Text x, Text y, Text name) {
              const bool turned = name == "second";
              if (turned) builder.node("Transpose", {"w"}, {"t"}, {}, "transpose");
              builder.node("Gemm", {x, turned ? "t" : "w", "zeros"}, {y}, {}, name);
            }),
            Names{"zeros@second.2"});
}

void add_norm(OnnxBuilder& builder, const std::string& x, const std::string& y,
              const std::string& mean, const std::string& variance, const std::string& name) {
  builder.node("BatchNormalization", {x, "ones", "zeros", mean, variance}, {name + ".h"}, {}, name);
  builder.node("MatMul", {name + ".h", "w"}, {y}, {}, name + ".matmul");
}

// Who stores equal tensors twice merges none.
TEST(UntieCopies, ANormThatIsCalledTwiceKeepsItsTensorsIfTheFileHasEqualOnes) {
  const auto add = [](OnnxBuilder& builder, const std::string& x, const std::string& y,
                      const std::string& name) {
    if (name == "first") {
      builder.initializer("mean", equal_elements({4}, 0));
      builder.initializer("variance", equal_elements({4}, 1));
    }
    add_norm(builder, x, y, "mean", "variance", name);
  };
  EXPECT_EQ(copies_of_two_calls(add), std::vector<std::string>());
  // Of zeros alone: then the gain is shared with the shift.
  const auto add_shift = [](OnnxBuilder& builder, const std::string& x, const std::string& y,
                            const std::string& name) {
    if (name == "first") builder.initializer("shift", equal_elements({4}, 0));
    builder.node("LayerNormalization", {x, "ones", "shift"}, {name + ".h"}, {}, name);
    builder.node("Gemm", {name + ".h", "w", "zeros"}, {y}, {}, name + ".gemm");
  };
  EXPECT_EQ(copies_of_two_calls(add_shift), std::vector<std::string>());
}

// PyTorch's older exporter leaves Identity nodes where it merges.
TEST(UntieCopies, WhatAnExporterThatLeavesIdentitiesSharesStaysTied) {
  const auto add = [](OnnxBuilder& builder, const std::string& x, const std::string& y,
                      const std::string& name) {
    if (name == "first") {
      builder.node("Identity", {"zeros"}, {"mean"});
      builder.node("Identity", {"ones"}, {"variance"});
    }
    add_norm(builder, x, y, "mean", "variance", name);
  };
  EXPECT_EQ(copies_of_two_calls(add, "pytorch 2.11.0"),
            (std::vector<std::string>{"mean", "variance"}));
}

// PyTorch's exporter passes the statistics of the first call to the second by an Identity, which
// is a part of that call.
TEST(UntieCopies, CallsOfOneNormShareItsStatistics) {
  for (const bool in_training : {true, false}) {
    for (const bool fresh : {true, false}) {
      OnnxBuilder builder = image_builder();
      builder.initializer("gain", equal_elements({4}, 1));
      builder.initializer("shift", scattered({4}));
      builder.initializer("mean", fresh ? equal_elements({4}, 0) : scattered({4}));
      builder.initializer("variance", equal_elements({4}, 2));
      builder.node("BatchNormalization", {"x", "gain", "shift", "mean", "variance"}, {"h"});
      if (in_training) builder.node("Identity", {"mean"}, {"getitem_3"});
      builder.node("BatchNormalization",
                   {"h", "gain", "shift", in_training ? "getitem_3" : "mean", "variance"}, {"y"});
      OnnxModel model = parsed(builder);
      for (const char* output : {"h", "getitem_3", "y"}) {
        if (!in_training && output == std::string("getitem_3")) continue;
        model.value_metadata[output]["pkg.torch.onnx.fx_node"] =
            "%norm" + std::string(output == std::string("y") ? "_1" : "") +
            " : [num_users=1] = call_function[target=torch.ops.aten.batch_norm.default](args = "
            "(%x, %p_bn_weight, %p_bn_bias, %b_bn_mean, %b_bn_var), kwargs = {})";
      }
      auto rules = classify_tensors(model, {});
      EXPECT_EQ(use_of(rules, "mean"), TensorUse::kRunningStatistic);
      EXPECT_TRUE(untie_copies(model, rules).empty()) << in_training << " " << fresh;
    }
  }
}

// Exporters fold the gains of group norms to (C, 1, 1) and merge those of the same size.
TEST(UntieCopies, MergedGainsOfGroupNormsComeApart) {
  OnnxBuilder builder = image_builder();
  for (const char* name : {"ones", "zeros"})
    builder.initializer(name, equal_elements({4}, name[0] == 'o' ? 1.0F : 0.0F));
  builder.initializer("val_28", equal_elements({4, 1, 1}, 1));
  builder.node("InstanceNormalization", {"x", "ones", "zeros"}, {"first"});
  builder.node("Mul", {"first", "val_28"}, {"scaled"}, {}, "scale");
  builder.node("InstanceNormalization", {"scaled", "ones", "zeros"}, {"second"});
  builder.node("Mul", {"second", "val_28"}, {"y"}, {}, "scale_again");
  OnnxModel model = parsed(builder);
  for (OnnxInitializer& tensor : model.initializers) {
    if (tensor.name == "val_28")
      tensor.metadata["pkg.onnxscript.optimizer.folded_from"] = "['norm.weight', 'val_27']";
  }
  auto rules = classify_tensors(model, {});
  EXPECT_EQ(use_of(rules, "val_28"), TensorUse::kTrained);
  const auto copies = untie_copies(model, rules);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].name, "val_28@scale_again.1");
}

// An exporter has merged second.bias with first.bias.
TEST(UntieCopies, FlagsTakeCopiesByTheirOwnNames) {
  OnnxBuilder builder = image_builder();
  builder.initializer("first.weight", scattered({4, 4, 1, 1}));
  builder.initializer("second.weight", scattered({4, 4, 1, 1}));
  builder.initializer("first.bias", equal_elements({4}, 0));
  builder.node("Identity", {"first.bias"}, {"second.bias"});
  builder.node("Conv", {"x", "first.weight", "first.bias"}, {"h"});
  builder.node("Conv", {"h", "second.weight", "second.bias"}, {"y"});
  const OnnxModel model = parsed(builder);
  const auto biases = [&](const ParameterOptions& options) {
    const auto rules = rules_with(model, options);
    return std::pair(use_of(rules, "first.bias"), use_of(rules, "second.bias"));
  };
  const std::pair first(TensorUse::kTrained, TensorUse::kFrozen),
      second(TensorUse::kFrozen, TensorUse::kTrained);
  EXPECT_EQ(biases({.freeze = {"second.bias"}, .train_only = {}}), first);
  EXPECT_EQ(biases({.freeze = {"second.*"}, .train_only = {}}), first);
  EXPECT_EQ(biases({.freeze = {"first.*"}, .train_only = {}}), second);
  EXPECT_EQ(biases({.freeze = {}, .train_only = {"second.*"}}), second);
}

TEST(UntieCopies, AnIdentityWithoutAnOutputIsNone) {
  OnnxBuilder builder = image_builder();
  builder.initializer("weight", scattered({4, 4, 1, 1}));
  builder.node("Conv", {"x", "weight"}, {"y"});
  builder.node("Identity", {"weight"}, {});
  builder.node("Identity", {"weight"}, {""});
  OnnxModel model = parsed(builder);
  auto rules = classify_tensors(model, {});
  EXPECT_EQ(use_of(rules, "weight"), TensorUse::kTrained);
  EXPECT_TRUE(untie_copies(model, rules).empty());
}

/// Normalizations one behind another that read the same gain, and what PyTorch's exporter says of
/// them: each is a call with the gain of a module, of which these are the names.
OnnxModel norms_in_turn(const std::vector<std::string>& modules) {
  OnnxBuilder builder("norms");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("gain", equal_elements({4}, 1));
  std::string last = "x";
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const std::string next = i + 1 < modules.size() ? "h" + std::to_string(i) : "y";
    builder.node("LayerNormalization", {last, "gain"}, {next}, {}, "n" + std::to_string(i));
    last = next;
  }
  OnnxModel model = parsed(builder);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    model.value_metadata[model.nodes[i].outputs[0]]["pkg.torch.onnx.fx_node"] =
        "%layer_norm_" + std::to_string(i) +
        " : [num_users=1] = call_function[target=torch.ops.aten.layer_norm.default](args = (%x, "
        "[4], %p_" +
        modules[i] + "_weight), kwargs = {})";
  }
  return model;
}

std::vector<std::string> gains_of(const OnnxModel& model) {
  std::vector<std::string> gains;
  for (const OnnxNode& node : model.nodes) gains.push_back(node.inputs[1]);
  return gains;
}

TEST(UntieCopies, CallsOfOneModuleShareTheirParameters) {
  using Names = std::vector<std::string>;
  const auto gains = [](const std::vector<std::string>& modules) {
    OnnxModel model = norms_in_turn(modules);
    auto rules = classify_tensors(model, {});
    untie_copies(model, rules);
    return gains_of(model);
  };
  EXPECT_EQ(gains({"norm", "norm"}), (Names{"gain", "gain"}));
  EXPECT_EQ(gains({"norm1", "norm2"}), (Names{"gain", "gain@n1.1"}));
  EXPECT_EQ(gains({"norm1", "norm2", "norm1", "norm2"}),
            (Names{"gain", "gain@n1.1", "gain", "gain@n1.1"}));
}

TEST(UntieCopies, ParametersOfOneCallComeApart) {
  OnnxModel model = norms_in_turn({"cell", "cell"});
  for (const char* output : {"h0", "y"})
    model.value_metadata[output]["pkg.torch.onnx.fx_node"] =
        "%cell : [num_users=1] = call_function[target=cell](args = (%x, %p_first, %p_second))";
  auto rules = classify_tensors(model, {});
  const auto copies = untie_copies(model, rules);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(gains_of(model), (std::vector<std::string>{"gain", "gain@n1.1"}));
}

// A norm without weights has ones, which had the value of another's gain.
TEST(UntieCopies, ConstantsOfCallsAreNotTrained) {
  for (const char* call : {"layer_norm.default](args = (%x, [4]), kwargs = {})",
                           "mul.Tensor](args = (%x, %b_mask), kwargs = {})"}) {
    for (const bool first : {false, true}) {
      OnnxModel model = norms_in_turn({"norm", "norm"});
      model.value_metadata[first ? "h0" : "y"]["pkg.torch.onnx.fx_node"] =
          "%other : [num_users=1] = call_function[target=torch.ops.aten." + std::string(call);
      auto rules = classify_tensors(model, {});
      untie_copies(model, rules);
      const std::vector<std::string> gains = gains_of(model);
      EXPECT_EQ(use_of(rules, gains[first ? 0 : 1]), TensorUse::kFrozen) << call;
      EXPECT_EQ(use_of(rules, gains[first ? 1 : 0]), TensorUse::kTrained) << call;
    }
  }
}

// PyTorch's exporter writes a group norm as an instance norm of ones and zeros, with the gain and
// the shift behind it.
TEST(UntieCopies, InstanceNormsWithinGroupNormsHaveConstants) {
  const auto gain_of_second = [](const std::string& call) {
    OnnxBuilder builder = image_builder();
    builder.initializer("first.weight", equal_elements({4}, 1));
    builder.initializer("first.bias", equal_elements({4}, 0));
    builder.node("InstanceNormalization", {"x", "first.weight", "first.bias"}, {"h"});
    builder.node("InstanceNormalization", {"h", "first.weight", "first.bias"}, {"y"}, {}, "second");
    OnnxModel model = parsed(builder);
    const auto say = [&](const char* output, const std::string& what) {
      model.value_metadata[output]["pkg.torch.onnx.fx_node"] =
          "%norm : [num_users=1] = call_function[target=torch.ops.aten." + what;
    };
    say("h", "instance_norm.default](args = (%x, %p_first_weight, %p_first_bias), kwargs = {})");
    say("y", call);
    auto rules = classify_tensors(model, {});
    untie_copies(model, rules);
    EXPECT_EQ(model.nodes[0].inputs[1], "first.weight") << call;
    EXPECT_EQ(use_of(rules, "first.weight"), TensorUse::kTrained) << call;
    EXPECT_EQ(model.nodes[1].inputs[1], "first.weight@second.1") << call;
    return use_of(rules, model.nodes[1].inputs[1]);
  };
  EXPECT_EQ(gain_of_second("group_norm.default](args = (%instance_norm, 2, %p_second_weight, "
                           "%p_second_bias), kwargs = {})"),
            TensorUse::kFrozen);
  // Behind a group norm.
  EXPECT_EQ(gain_of_second("instance_norm.default](args = (%group_norm, %p_second_weight, "
                           "%p_second_bias), kwargs = {})"),
            TensorUse::kTrained);
}

}  // namespace
}  // namespace pipetrain::test
