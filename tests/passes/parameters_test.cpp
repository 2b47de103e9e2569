#include "passes/parameters.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "support/parameter_models.h"

namespace pipetrain::test {
namespace {

HostTensor filled(Shape shape, float value) {
  HostTensor out(TensorType{DType::kFloat32, shape});
  for (float& x : out.span<float>()) x = value;
  return out;
}

HostTensor rising(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, shape});
  float next = 0.5F;
  for (float& x : out.span<float>()) x = next += 0.25F;
  return out;
}

std::map<std::string, TensorRule> selected_rules(const OnnxModel& model,
                                                 const ParameterOptions& options) {
  auto rules = classify_tensors(model, options);
  freeze_tensors(rules, options);
  return rules;
}

TEST(Parameters, WeightsAreTrainedConstantsAreNot) {
  OnnxBuilder builder = image_builder();
  builder.initializer("conv_w", rising({6, 4, 1, 1}));
  builder.initializer("epsilon", HostTensor::scalar<float>(1e-5F));
  builder.initializer("mask", rising({5, 5}));
  builder.node("Conv", {"x", "conv_w"}, {"c"});
  builder.node("Add", {"c", "epsilon"}, {"a"});
  builder.node("Mul", {"a", "mask"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  EXPECT_EQ(use_of(rules, "conv_w"), TensorUse::kTrained);
  EXPECT_EQ(use_of(rules, "epsilon"), TensorUse::kFrozen);
  EXPECT_EQ(use_of(rules, "mask"), TensorUse::kFrozen);
}

TEST(Parameters, WeightIsFoundThroughATransposeAndATableThroughAConstantGather) {
  OnnxBuilder builder("test");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 3}, {"", 8}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("table.weight", rising({9, 8}));
  const std::int64_t rows[] = {0, 1, 2};
  builder.initializer("rows", HostTensor::of<std::int64_t>({3}, rows));
  builder.initializer("p0", rising({6, 8}));
  builder.node("Gather", {"table.weight", "rows"}, {"positions"});
  builder.node("Add", {"x", "positions"}, {"a"});
  builder.node("Transpose", {"p0"}, {"turned"}, {OnnxAttribute::of_ints("perm", {1, 0})});
  builder.node("MatMul", {"a", "turned"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  EXPECT_EQ(use_of(rules, "table.weight"), TensorUse::kTrained);
  EXPECT_EQ(use_of(rules, "p0"), TensorUse::kTrained);
}

TEST(Parameters, WeightIsFoundThroughOperatorsThatReparametrizeIt) {
  OnnxBuilder builder = image_builder();
  builder.initializer("conv.weight_v", rising({6, 4, 1, 1}));
  builder.initializer("conv.weight_g", rising({6, 1, 1, 1}));
  builder.initializer("conv.weight_mask", rising({6, 4, 1, 1}));
  builder.initializer("conv.weight_u", rising({6}));
  builder.initializer("conv.table", rising({6, 4, 1, 1}));
  builder.initializer("skipinit.gain", HostTensor::scalar<float>(0.5F));
  builder.initializer("slope", HostTensor::scalar<float>(0.5F));
  builder.node("ReduceL2", {"conv.weight_v"}, {"norm"});
  builder.node("Div", {"conv.weight_v", "norm"}, {"direction"});
  builder.node("Mul", {"direction", "conv.weight_g"}, {"w"});
  builder.node("Mul", {"w", "conv.weight_mask"}, {"masked"});
  builder.node("Mul", {"masked", "conv.table"}, {"weight"});
  builder.node("ReduceMean", {"conv.weight_u"}, {"u"});
  builder.node("Mul", {"weight", "u"}, {"scaled"});
  builder.node("Conv", {"x", "scaled"}, {"c"});
  builder.node("Mul", {"skipinit.gain", "slope"}, {"gain"});
  builder.node("Mul", {"c", "gain"}, {"g"});
  builder.node("Mul", {"g", "slope"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  for (const char* name : {"conv.weight_v", "conv.weight_g", "skipinit.gain"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kTrained) << name;
  for (const char* name : {"conv.weight_mask", "conv.weight_u", "conv.table", "slope"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kFrozen) << name;
}

TEST(Parameters, PartsOfAComputedWeightAreTrainedWhateverTheirNames) {
  OnnxBuilder builder("test");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("v", scattered({6, 8}));
  builder.initializer("g", scattered({1, 8}));
  builder.initializer("w", scattered({8, 4}));
  builder.initializer("onnx::MatMul_31", scattered({8, 2}));
  builder.initializer("a", scattered({2, 4}));
  builder.initializer("adapter.magnitude", filled({4}, 1));
  builder.node("ReduceL2", {"v"}, {"norm"});
  builder.node("Div", {"v", "norm"}, {"direction"});
  builder.node("Mul", {"g", "direction"}, {"first"});
  builder.node("MatMul", {"onnx::MatMul_31", "a"}, {"low_rank"});
  builder.node("Add", {"w", "low_rank"}, {"sum"});
  builder.node("Mul", {"sum", "adapter.magnitude"}, {"second"});
  builder.node("MatMul", {"x", "first"}, {"h"});
  builder.node("MatMul", {"h", "second"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  for (const char* name : {"v", "g", "w", "onnx::MatMul_31", "a", "adapter.magnitude"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kTrained) << name;
  EXPECT_EQ(rules.at("g").reason, "part of the weight of MatMul");
  EXPECT_EQ(note_on_uncertain_parameters(rules), "");
}

TEST(Parameters, ConstantsInTheArithmeticOfWeightsStayFrozen) {
  OnnxBuilder builder("test");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("w", scattered({6, 8}));
  HostTensor window = scattered({6, 8});  // of two magnitudes
  for (float& x : window.span<float>()) x = x < 0 ? -0.5F : 0.25F;
  builder.initializer("window_of_two", window);
  builder.initializer("ramp", rising({6, 8}));
  builder.initializer("ones", filled({6, 8}, 1));
  builder.initializer("fc.mask", scattered({6, 8}));
  builder.initializer("fc.std", scattered({8}));
  builder.initializer("/fc/Constant_output_0", scattered({6, 8}));
  builder.initializer("few", scattered({1, 8}));
  builder.initializer("threshold", scattered({6, 8}));
  std::string last = "w";
  for (const char* name :
       {"window_of_two", "ramp", "ones", "fc.mask", "fc.std", "/fc/Constant_output_0"}) {
    builder.node("Mul", {last, name}, {std::string("w_") + name});
    last = std::string("w_") + name;
  }
  builder.node("Greater", {"w", "threshold"}, {"kept"});
  builder.node("Cast", {"kept"}, {"factor"}, {OnnxAttribute::of_int("to", 1)});
  builder.node("Mul", {last, "factor"}, {"pruned"});
  builder.node("MatMul", {"x", "pruned"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  EXPECT_EQ(use_of(rules, "w"), TensorUse::kTrained);
  for (const char* name :
       {"window_of_two", "ramp", "ones", "fc.mask", "fc.std", "/fc/Constant_output_0", "threshold"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kFrozen) << name;
  // No gradient passes a comparison; a few numbers are not worth a word.
  for (const char* name : {"threshold", "fc.std"}) EXPECT_FALSE(rules.at(name).doubtful) << name;
  EXPECT_TRUE(rules.at("ramp").doubtful);
  EXPECT_EQ(note_on_uncertain_parameters(rules),
            "5 tensors that may be parameters are taken for constants and not trained: "
            "/fc/Constant_output_0, fc.mask, ones, ramp, …; to train them, name all that is to be "
            "trained with `train-only` GLOB");
  ParameterOptions options;
  options.train_only = {"w", "ramp"};
  EXPECT_EQ(note_on_uncertain_parameters(selected_rules(parsed(builder), options)), "");
}

TEST(Parameters, PartsOfAComputedOperandAreTrained) {
  OnnxBuilder builder("test");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("y", DType::kFloat32, {});
  // A bias computed from a table of positions, as in Swin's second version.
  builder.initializer("relative_coords_table", scattered({6, 2}));
  builder.initializer("onnx::MatMul_40", scattered({2, 5}));
  builder.initializer("onnx::MatMul_41", scattered({5, 1}));
  builder.initializer("time.decay", rising({6}));
  builder.initializer("onnx::Exp_50", scattered({2, 6}));
  builder.node("MatMul", {"relative_coords_table", "onnx::MatMul_40"}, {"hidden"});
  builder.node("Relu", {"hidden"}, {"active"});
  builder.node("MatMul", {"active", "onnx::MatMul_41"}, {"column"});
  builder.node("Transpose", {"column"}, {"bias"});
  builder.node("Add", {"x", "bias"}, {"a"});
  builder.node("Exp", {"time.decay"}, {"decay"});
  builder.node("Mul", {"a", "decay"}, {"b"});
  builder.node("Exp", {"onnx::Exp_50"}, {"table"});
  builder.node("Mul", {"b", "table"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  for (const char* name : {"onnx::MatMul_40", "onnx::MatMul_41", "time.decay"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kTrained) << name;
  for (const char* name : {"relative_coords_table", "onnx::Exp_50"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kFrozen) << name;
  EXPECT_FALSE(rules.at("relative_coords_table").doubtful);
  EXPECT_TRUE(rules.at("onnx::Exp_50").doubtful);
}

TEST(Parameters, FoldedTensorsAreTrainedIfParametersWentIn) {
  OnnxBuilder builder = image_builder();
  const std::map<std::string, std::string> sources = {
      {"mul", "['pos_conv.parametrizations.weight.original0', 'val_0', 'div']"},
      {"mul_1", "['g', 'div_1', 'linalg_vector_norm', 'v', 'val_2']"},
      {"view", "['stages.0.gamma', 'val_7']"},
      {"cat", "['q.bias', 'k.bias', 'val_8']"},
      {"cos", "['arange', 'mul_2', 'val_9']"},
      {"expand", "['aa.filt', 'val_10']"},
      {"where", "['criterion.pos_weight', 'val_12']"},
      {"ones", "['val_11', 'size']"},
  };
  for (const char* name : {"mul", "mul_1", "cos", "expand", "where"})
    builder.initializer(name, scattered({4, 4, 1, 1}));
  builder.initializer("view", scattered({1, 4, 1, 1}));
  builder.initializer("cat", scattered({1, 4, 5, 5}));
  std::string last = "x";
  for (const char* name : {"mul", "mul_1", "cos", "expand", "where"}) {
    builder.node("Conv", {last, name}, {std::string("c_") + name});
    last = std::string("c_") + name;
  }
  builder.initializer("ones", filled({16}, 1));
  builder.node("InstanceNormalization", {last, "ones"}, {"normalized"});
  builder.node("Mul", {"normalized", "view"}, {"scaled"});
  builder.node("Add", {"scaled", "cat"}, {"y"});
  OnnxModel model = parsed(builder);
  for (OnnxInitializer& tensor : model.initializers)
    tensor.metadata["pkg.onnxscript.optimizer.folded_from"] = sources.at(tensor.name);
  const auto rules = classify_tensors(model, {});
  for (const char* name : {"mul", "mul_1", "view", "cat"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kTrained) << name;
  EXPECT_EQ(rules.at("cat").reason, "folded from q.bias and 1 more");
  for (const char* name : {"cos", "expand", "where"}) {
    EXPECT_EQ(use_of(rules, name), TensorUse::kFrozen) << name;
    EXPECT_TRUE(rules.at(name).doubtful) << name;
  }
  EXPECT_EQ(use_of(rules, "ones"), TensorUse::kFrozen);
  EXPECT_FALSE(rules.at("ones").doubtful);
}

// A kernel computed by weight normalization of which no parameter's name is left.
TEST(Parameters, ConstantKernelsOfConvolutionsAreTrained) {
  OnnxBuilder builder = image_builder();
  const std::map<std::string, std::string> kinds = {{"conv.weight", "PARAMETER"},
                                                    {"pos_conv", "CONSTANT_TENSOR"},
                                                    {"blur", "BUFFER"},
                                                    {"box", "CONSTANT_TENSOR"},
                                                    {"table", "CONSTANT_TENSOR"}};
  HostTensor box = scattered({4, 1, 3, 3});  // of two magnitudes
  for (float& v : box.span<float>()) v = v < 0 ? 0.0625F : 0.125F;
  std::string last = "x";
  for (const char* name : {"conv.weight", "pos_conv", "mul", "blur", "box"}) {
    builder.initializer(name, name == std::string("box") ? box : scattered({4, 1, 3, 3}));
    builder.node("Conv", {last, name}, {std::string("c_") + name},
                 {OnnxAttribute::of_int("group", 4)});
    last = std::string("c_") + name;
  }
  builder.initializer("table", scattered({5, 5}));
  builder.node("MatMul", {last, "table"}, {"y"});
  OnnxModel model = parsed(builder);
  for (OnnxInitializer& tensor : model.initializers) {
    if (const auto kind = kinds.find(tensor.name); kind != kinds.end())
      tensor.metadata["pkg.torch.export.graph_signature.InputSpec.kind"] = kind->second;
    if (tensor.name == "mul")
      tensor.metadata["pkg.onnxscript.optimizer.folded_from"] =
          "['div_1', 'linalg_vector_norm_1', 'val_3']";
  }
  const auto rules = classify_tensors(model, {});
  for (const char* name : {"conv.weight", "pos_conv", "mul"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kTrained) << name;
  for (const char* name : {"blur", "box", "table"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kFrozen) << name;
  EXPECT_FALSE(rules.at("blur").doubtful);
  EXPECT_TRUE(rules.at("table").doubtful);
}

TEST(Parameters, BuffersOfModulesAndConstantNormsStayFrozen) {
  OnnxBuilder builder = image_builder();
  builder.initializer("norm.mean", scattered({1, 4, 1, 1}));
  builder.initializer("layer_scale", scattered({1, 4, 1, 1}));
  builder.initializer("shift", scattered({1, 4, 1, 1}));
  builder.initializer("aa.filt", scattered({4, 1, 3, 3}));
  builder.initializer("table", scattered({4, 5, 5}));
  builder.initializer("last.filt", filled({4}, 0));  // merged with a bias
  builder.initializer("last.weight", scattered({4, 4, 1, 1}));
  builder.node("Constant", {}, {"/norm/Constant_output_0"},
               {OnnxAttribute::of_tensor("value", filled({5}, 1))});
  builder.node("Sub", {"x", "norm.mean"}, {"a"});
  builder.node("Mul", {"a", "layer_scale"}, {"b"});
  builder.node("Add", {"b", "shift"}, {"c"});
  builder.node("LayerNormalization", {"c", "/norm/Constant_output_0"}, {"n"});
  builder.node("Conv", {"n", "aa.filt"}, {"d"}, {OnnxAttribute::of_int("group", 4)});
  HostTensor blur = scattered({4, 1, 3, 3});
  for (float& v : blur.span<float>()) v = v < 0 ? 0.0625F : 0.125F;
  builder.node("Constant", {}, {"/aa/Constant_8_output_0"},
               {OnnxAttribute::of_tensor("value", blur)});
  builder.node("Constant", {}, {"/pos_conv/Constant_output_0"},
               {OnnxAttribute::of_tensor("value", scattered({4, 1, 3, 3}))});
  for (const auto& [from, to, kernel] : {std::array{"d", "d1", "/aa/Constant_8_output_0"},
                                         std::array{"d1", "d2", "/pos_conv/Constant_output_0"}})
    builder.node("Conv", {from, kernel}, {to}, {OnnxAttribute::of_int("group", 4)});
  builder.node("Add", {"d2", "table"}, {"e"});
  builder.node("Conv", {"e", "last.weight", "last.filt"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  for (const char* name :
       {"layer_scale", "shift", "last.weight", "last.filt", "/pos_conv/Constant_output_0"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kTrained) << name;
  for (const char* name :
       {"norm.mean", "/norm/Constant_output_0", "aa.filt", "table", "/aa/Constant_8_output_0"})
    EXPECT_EQ(use_of(rules, name), TensorUse::kFrozen) << name;
  for (const char* name : {"aa.filt", "table"}) EXPECT_TRUE(rules.at(name).doubtful) << name;
}

TEST(Parameters, NormOverWeightsIsTrainedButNotACopyForItsStatistics) {
  OnnxBuilder builder = image_builder();
  builder.initializer("onnx::BatchNormalization_7", scattered({1, 6, 4}));
  builder.initializer("onnx::BatchNormalization_9", filled({6}, 0.25F));
  builder.initializer("onnx::BatchNormalization_10", filled({6}, 0));
  builder.initializer("onnx::ReduceMean_11", scattered({6, 4}));
  builder.node("ReduceMean", {"onnx::ReduceMean_11"}, {"mean"},
               {OnnxAttribute::of_ints("axes", {1}), OnnxAttribute::of_int("keepdims", 0)});
  builder.node("BatchNormalization",
               {"onnx::BatchNormalization_7", "onnx::BatchNormalization_9",
                "onnx::BatchNormalization_10", "mean", "mean"},
               {"n"});
  builder.initializer("shape",
                      HostTensor::of<std::int64_t>({4}, std::vector<std::int64_t>{6, 4, 1, 1}));
  builder.node("Reshape", {"n", "shape"}, {"w"});
  builder.node("Conv", {"x", "w"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  EXPECT_EQ(use_of(rules, "onnx::BatchNormalization_7"), TensorUse::kTrained);
  EXPECT_EQ(use_of(rules, "onnx::BatchNormalization_9"), TensorUse::kTrained);
  EXPECT_EQ(use_of(rules, "onnx::BatchNormalization_10"), TensorUse::kFrozen);
  EXPECT_EQ(use_of(rules, "onnx::ReduceMean_11"), TensorUse::kFrozen);
}

TEST(Parameters, RunningStatisticsAreUpdatedNotTrained) {
  OnnxBuilder builder = image_builder();
  for (const char* name : {"scale", "bias", "mean", "var"}) builder.initializer(name, rising({4}));
  builder.node("BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  EXPECT_EQ(use_of(rules, "scale"), TensorUse::kTrained);
  EXPECT_EQ(use_of(rules, "bias"), TensorUse::kTrained);
  EXPECT_EQ(use_of(rules, "mean"), TensorUse::kRunningStatistic);
  EXPECT_EQ(use_of(rules, "var"), TensorUse::kRunningStatistic);
}

TEST(Parameters, ZerosInPlaceOfABiasAreFrozen) {
  const std::map<std::string, Shape> shapes = {
      {"pairs", {4, 2}}, {"bias", {4}}, {"none", {4, 0}}, {"row", {1, 4}}};
  for (const auto& [name, shape] : shapes) {
    OnnxBuilder builder = image_builder();
    builder.initializer("w", scattered({4, 4, 1, 1}));
    builder.initializer("b", filled(shape, 0));
    builder.node("Conv", {"x", "w", "b"}, {"y"});
    const auto rules = classify_tensors(parsed(builder), {});
    EXPECT_EQ(use_of(rules, "b") == TensorUse::kFrozen, name == "pairs") << name;
  }
}

TEST(Parameters, FlagsDecideAndTyposAreRefused) {
  OnnxBuilder builder = image_builder();
  builder.initializer("stem.weight", rising({6, 4, 1, 1}));
  builder.initializer("stem.bias", rising({6}));
  builder.node("Conv", {"x", "stem.weight", "stem.bias"}, {"y"});
  const OnnxModel model = parsed(builder);
  ParameterOptions options;
  options.freeze = {"*.weight"};
  EXPECT_EQ(use_of(selected_rules(model, options), "stem.weight"), TensorUse::kFrozen);
  EXPECT_EQ(use_of(selected_rules(model, options), "stem.bias"), TensorUse::kTrained);
  options = {};
  options.train_only = {"stem.w*"};
  EXPECT_EQ(use_of(selected_rules(model, options), "stem.bias"), TensorUse::kFrozen);
  options.train_only = {"steam.*"};
  EXPECT_THROW(selected_rules(model, options), Error);
}

TEST(Parameters, Globs) {
  EXPECT_TRUE(matches_glob("layer?.*.weight", "layer1.0.conv.weight"));
  EXPECT_FALSE(matches_glob("layer?.*.weight", "layer1.0.conv.bias"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_FALSE(matches_glob("?", ""));
}

TEST(Parameters, BiasesAndNormsAreNotDecayed) {
  OnnxBuilder builder = image_builder();
  builder.initializer("conv.w", rising({6, 4, 1, 1}));
  builder.initializer("conv.b", rising({6}));
  builder.initializer("norm.gain", rising({6}));
  builder.initializer("norm.shift", rising({6}));
  builder.initializer("norm.mean", filled({6}, 0));
  builder.initializer("norm.var", filled({6}, 1));
  builder.initializer("scale.gamma", rising({6, 1, 1}));
  builder.initializer("one.w", rising({1, 150}));
  builder.initializer("one.b", rising({1, 1}));
  builder.initializer("class.b", rising({1, 5}));
  builder.initializer("class.w", rising({1, 5}));
  builder.node("Conv", {"x", "conv.w", "conv.b"}, {"c"});
  builder.node("BatchNormalization", {"c", "norm.gain", "norm.shift", "norm.mean", "norm.var"},
               {"n"});
  builder.node("Mul", {"n", "scale.gamma"}, {"s"});
  builder.node("Flatten", {"s"}, {"f"});
  builder.node("Gemm", {"f", "one.w", "one.b"}, {"o"}, {OnnxAttribute::of_int("transB", 1)});
  builder.node("Gemm", {"o", "class.w", "class.b"}, {"y"});
  const auto rules = classify_tensors(parsed(builder), {});
  for (const char* name : {"conv.w", "one.w", "class.w"})
    EXPECT_TRUE(rules.at(name).decays) << name;
  for (const char* name : {"conv.b", "norm.gain", "norm.shift", "scale.gamma", "one.b", "class.b"})
    EXPECT_FALSE(rules.at(name).decays) << name;
}

TEST(Parameters, BiasesOfRecurrentLayersAreNotDecayed) {
  OnnxBuilder builder("test");
  builder.input("x", DType::kFloat32, {{"steps", 7}, {"batch", -1}, {"", 3}});
  builder.output("y", DType::kFloat32, {});
  builder.initializer("lstm.w", rising({1, 8, 3}));
  builder.initializer("lstm.r", rising({1, 8, 2}));
  builder.initializer("lstm.b", rising({1, 16}));
  builder.node("LSTM", {"x", "lstm.w", "lstm.r", "lstm.b"}, {"y"},
               {OnnxAttribute::of_int("hidden_size", 2)});
  const auto rules = classify_tensors(parsed(builder), {});
  EXPECT_TRUE(rules.at("lstm.w").decays);
  EXPECT_TRUE(rules.at("lstm.r").decays);
  EXPECT_FALSE(rules.at("lstm.b").decays);
}

}  // namespace
}  // namespace pipetrain::test
