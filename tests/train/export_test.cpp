// Trained values are in the written file, whatever way the exporter wrote the tensors down.
#include "train/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "support/onnx_parts.h"
#include "support/temporary_directory.h"
#include "train/adapter_file.h"

namespace pipetrain {
namespace {

HostTensor filled(Shape shape, float value) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  for (float& x : out.span<float>()) x = value;
  return out;
}

/// Two layers whose equal weights were merged: only copies are read, not the tensor itself.
void write_merged(const std::filesystem::path& path) {
  OnnxBuilder builder("merged");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("shared", filled({4, 4}, 0.5F));
  builder.node("Identity", {"shared"}, {"first.weight"});
  builder.node("Identity", {"shared"}, {"second.weight"});
  builder.node("MatMul", {"x", "first.weight"}, {"h"}, {}, "first");
  builder.node("MatMul", {"h", "second.weight"}, {"y"}, {}, "second");
  builder.write(path);
}

LoadedModel loaded(const std::filesystem::path& path) {
  ModelConfig config;
  config.path = path.string();
  return load_model(config);
}

float first_number(const LoadedModel& model, const std::string& name) {
  return model.model.find_initializer(name)->to_float32().span<float>()[0];
}

TEST(Export, SaysNoLongerThatDataWereSynthetic) {
  TrainingDescription training;
  training.synthetic = true;
  const OnnxMetadata synthetic = describe_training(true, training, {});
  EXPECT_EQ(synthetic.at("pipetrain.data"), "synthetic");
  EXPECT_EQ(describe_training(true, {}, synthetic).at("pipetrain.data"), "");
  EXPECT_FALSE(describe_training(true, {}, {}).contains("pipetrain.data"));
}

TEST(Export, NamesOfClassesAreThoseOfTheLastTraining) {
  TrainingDescription training;
  training.class_names = {"ant", "bee"};
  const OnnxMetadata named = describe_training(true, training, {});
  OnnxModel model;
  model.metadata = named;
  EXPECT_EQ(trained_classes(model), training.class_names);
  // Data without names may be of other classes.
  for (const auto& [key, value] : describe_training(true, {}, named)) model.metadata[key] = value;
  EXPECT_TRUE(trained_classes(model).empty());
  EXPECT_FALSE(describe_training(true, {}, {}).contains("pipetrain.classes"));
}

TEST(Export, KeepsTheLargestValueOfEachInput) {
  EXPECT_EQ(as_measured({{"a", 10}, {"b", 10}}).text(), "10");
  const Normalization several = as_measured({{"a", 10}, {"b", 0.5}});
  EXPECT_EQ(several.text(), R"(max:{"a":10.0,"b":0.5})");
  EXPECT_EQ(Normalization::parse(several.text()).of_training, several.of_training);
  EXPECT_EQ(as_measured({}).text(), "max");  // no input is divided
}

TEST(Export, KeepsValuesOfTensorsThatOnlyCopiesRead) {
  const TemporaryDirectory folder;
  std::filesystem::path path = folder.path() / "0.onnx";
  write_merged(path);
  for (int round = 1; round <= 3; ++round) {
    const LoadedModel model = loaded(path);
    const float first = static_cast<float>(round), second = -first;
    const auto read = [&](const std::string& name) {
      if (name == "first.weight") return filled({4, 4}, first);
      if (name == "second.weight") return filled({4, 4}, second);
      return HostTensor();  // not part of the network
    };
    const auto next = folder.path() / (std::to_string(round) + ".onnx");
    export_weights(model, read, {}, next.string(), false);
    const LoadedModel written = loaded(next);
    EXPECT_EQ(first_number(written, "first.weight"), first);
    EXPECT_EQ(first_number(written, "second.weight"), second);
    EXPECT_EQ(written.file.initializers.size(), 2U);
    path = next;
  }
}

TEST(Export, AWeightThatTheModelReturnsIsTheTrainedOne) {
  OnnxBuilder builder("returns its weight");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("W_out", DType::kFloat32, {{"", 4}, {"", 4}});
  builder.initializer("W", filled({4, 4}, 0.5F));
  builder.node("Identity", {"W"}, {"alias"});
  builder.node("Identity", {"alias"}, {"W_out"});
  builder.node("MatMul", {"x", "W"}, {"y"}, {}, "layer");
  const TemporaryDirectory folder;
  builder.write(folder / "weight.onnx");
  const auto read = [](const std::string& name) {
    return name == "W" ? filled({4, 4}, 3) : HostTensor();
  };
  export_weights(loaded(folder / "weight.onnx"), read, {}, (folder / "trained.onnx").string(),
                 false);
  const OnnxModel written = loaded(folder / "trained.onnx").file;
  ASSERT_EQ(written.initializers.size(), 1U);
  EXPECT_EQ(written.initializers[0].to_float32().span<float>()[0], 3);
  EXPECT_EQ(written.nodes[0].inputs, std::vector<std::string>{"W"});
}

/// Heads "a", "b" and so on with biases of zeros that an exporter has merged into "bias".
LoadedModel merged_heads(const std::filesystem::path& path, int count) {
  OnnxBuilder builder("heads");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("bias", filled({4}, 0));
  for (int i = 0; i < count; ++i) {
    const std::string head(1, static_cast<char>('a' + i));
    builder.output(head, DType::kFloat32, {{"batch", -1}, {"", 4}});
    builder.initializer(head + ".weight", filled({4, 4}, 0.5F));
    builder.node("Gemm", {"x", head + ".weight", "bias"}, {head}, {}, head);
  }
  builder.write(path);
  return loaded(path);
}

/// What the heads of an exported file add.
std::vector<float> biases_of_heads(const LoadedModel& written) {
  std::vector<float> out;
  for (const OnnxNode& node : written.file.nodes)
    out.push_back(written.file.find_initializer(node.inputs[2])->to_float32().span<float>()[0]);
  return out;
}

TEST(Export, CopiesThatAreNotTrainedKeepTheirValues) {
  const TemporaryDirectory folder;
  const LoadedModel model = merged_heads(folder / "heads.onnx", 2);
  const auto read = [](const std::string& name) {
    return name == "bias" ? filled({4}, 3) : HostTensor();  // the loss needs one head only
  };
  export_weights(model, read, {}, (folder / "trained.onnx").string(), false);
  EXPECT_EQ(biases_of_heads(loaded(folder / "trained.onnx")), (std::vector<float>{3, 0}));
}

TEST(Export, ACopyAtSeveralPlacesIsOneTensor) {
  const TemporaryDirectory folder;
  LoadedModel model = merged_heads(folder / "heads.onnx", 3);
  ASSERT_EQ(model.copies.size(), 2U);
  model.copies[1].name = model.copies[0].name;
  const auto read = [&](const std::string& name) {
    if (name == model.copies[0].name) return filled({4}, 5);
    return name == "bias" ? filled({4}, 3) : HostTensor();
  };
  export_weights(model, read, {}, (folder / "trained.onnx").string(), false);
  const LoadedModel written = loaded(folder / "trained.onnx");
  EXPECT_EQ(biases_of_heads(written), (std::vector<float>{3, 5, 5}));
  EXPECT_EQ(written.file.initializers.size(), model.file.initializers.size() + 1);
}

TEST(Export, NeedsTheInitialValuesOfCopiesThatAreNotTrained) {
  const TemporaryDirectory folder;
  const LoadedModel model = merged_heads(folder / "heads.onnx", 2);
  BuildOptions options;
  options.lower.micro_batch = 2;
  options.loss.output = "a";
  const TrainingGraph training = build_training_graph(model.model, model.rules, options);
  EXPECT_EQ(initial_values_in_export(model, training.graph), (std::set<std::string>{"bias@b.2"}));
}

TEST(Export, CopiesOfAdaptedWeightsKeepTheirValues) {
  const TemporaryDirectory folder;
  OnnxBuilder builder("merged");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("first.weight", filled({4, 4}, 0.5F));
  builder.node("Identity", {"first.weight"}, {"second.weight"});
  builder.node("MatMul", {"x", "first.weight"}, {"h"}, {}, "first");
  builder.node("MatMul", {"h", "second.weight"}, {"y"}, {}, "second");
  builder.write(folder / "merged.onnx");
  ModelConfig config;
  config.path = (folder / "merged.onnx").string();
  config.adapters.rank = 1;
  config.adapters.targets = {"first.weight"};
  const LoadedModel model = load_model(config);
  ASSERT_EQ(model.adapters.size(), 1U);
  const auto read = [&](const std::string& name) {
    if (name == model.adapters[0].a) return filled({1, 4}, 1);
    if (name == model.adapters[0].b) return filled({4, 1}, 2);
    return HostTensor();
  };
  export_weights(model, read, {}, (folder / "trained.onnx").string(), false);
  const LoadedModel written = loaded(folder / "trained.onnx");
  EXPECT_EQ(first_number(written, "first.weight"), 2.5F);
  EXPECT_EQ(first_number(written, "second.weight"), 0.5F);
}

TEST(Export, AdaptersThatTheLossDoesNotUseAreLeftOut) {
  const TemporaryDirectory folder;
  merged_heads(folder / "heads.onnx", 2);
  ModelConfig config;
  config.path = (folder / "heads.onnx").string();
  config.adapters.rank = 1;
  const LoadedModel model = load_model(config);
  ASSERT_EQ(model.adapters.size(), 2U);
  const Adapter &used = model.adapters[0], &unused = model.adapters[1];
  write_adapters(folder / "used.safetensors", model, [&](const std::string& name) {
    return name == used.a || name == used.b ? filled({4, 1}, 1) : HostTensor();
  });
  const std::string written = get_file(folder / "used.safetensors");
  for (const std::string& name : {used.a, used.b})
    EXPECT_NE(written.find("base_model.model." + name), std::string::npos) << name;
  for (const std::string& name : {unused.a, unused.b})
    EXPECT_EQ(written.find("base_model.model." + name), std::string::npos) << name;
}

TEST(Export, ConstantsInOtherFilesNeedAFileName) {
  const TemporaryDirectory folder;
  put_file(folder / "in.data", std::string(16, 'x'));
  const std::string value =
      field(1, "value") +
      field(5, tensor_part("", {4}, 1, external_data({{"location", "in.data"}}))) +
      field(20, std::int64_t{4});
  ModelParts parts = small_model();
  parts.nodes = {node_part("Constant", {}, {"c"}) + field(5, value),
                 node_part("Add", {"x", "c"}, {"h"}), node_part("MatMul", {"h", "W"}, {"y"})};
  put_file(folder / "in.onnx", parts.bytes());
  const OnnxModel model = read_onnx(folder / "in.onnx");
  EXPECT_NO_THROW(check_one_file(model, (folder / "out.onnx").string()));
  try {
    check_one_file(model, "-");
    FAIL() << "standard output takes one file only";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  }
}

// The body of a function has one list for all calls.
TEST(Export, StatisticsThatCannotBeWrittenBackAreConstants) {
  const TemporaryDirectory folder;
  const auto list = [](const char* name, std::vector<float> values) {
    return node_part("Constant", {}, {name},
                     {OnnxAttribute::of_floats("value_floats", std::move(values))});
  };
  for (const int calls : {1, 2}) {
    ModelParts parts = small_model();
    parts.opsets.push_back(encode_opset("d", 1));
    parts.functions = {function_part(
        "d", "Norm", {"a"}, {"b"},
        {list("gain", {1, 2, 1, 2}), list("mean", {1, 2, 3, 4}), list("variance", {4, 3, 2, 1}),
         node_part("BatchNormalization", {"a", "gain", "gain", "mean", "variance"}, {"b"})})};
    parts.nodes = {
        node_part("Norm", {"x"}, {"h"}, {}, "first", "d"),
        node_part(calls == 2 ? "Norm" : "Relu", {"h"}, {"n"}, {}, "second", calls == 2 ? "d" : ""),
        node_part("MatMul", {"n", "W"}, {"y"}, {}, "mm")};
    put_file(folder / "in.onnx", parts.bytes());
    const LoadedModel model = loaded(folder / "in.onnx");
    const auto statistics = std::ranges::count_if(model.rules, [](const auto& rule) {
      return rule.second.use == TensorUse::kRunningStatistic;
    });
    EXPECT_EQ(statistics, calls == 1 ? 2 : 0);
  }
}

}  // namespace
}  // namespace pipetrain
