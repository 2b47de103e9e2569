// The decoder at any size: its parameters are counted by formula, and the largest is never held in
// memory.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "base/error.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/written_weights.h"
#include "support/peak_memory.h"
#include "support/temporary_directory.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

ZooModel build(const char* name, const ZooOptions& options) {
  return build_zoo_network(*find_zoo_network(name), options);
}

OnnxModel read(const ZooModel& model) {
  const std::string bytes = model.onnx.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

// Embeddings of tokens and positions; blocks of qkv (3 C^2 + 3 C), proj (C^2 + C), fc1 (4 C^2 + 4
// C), fc2 (4 C^2 + C) and two norms (4 C); a norm; an output layer without bias.
std::int64_t numbers(std::int64_t layers, std::int64_t c, std::int64_t vocab,
                     std::int64_t context) {
  return vocab * c + context * c + layers * (12 * c * c + 13 * c) + 2 * c + c * vocab;
}

TEST(Gpt, HasTheParametersOfItsFormula) {
  EXPECT_EQ(build("gpt", {}).trained_numbers, numbers(12, 768, 50257, 1024));
  EXPECT_EQ(build("gpt", {.width = 48, .depth = 3, .heads = 2, .vocab = 99, .context = 10})
                .trained_numbers,
            numbers(3, 48, 99, 10));
  EXPECT_EQ(build("gpt-nano", {}).trained_numbers, numbers(4, 128, 256, 64));
}

TEST(Gpt, NanoIsTheSameNetworkByItsOldName) {
  const ZooOptions sizes = {.width = 64, .depth = 2, .heads = 2, .vocab = 50, .context = 8};
  const OnnxModel nano = read(build("gpt-nano", sizes));
  const OnnxModel gpt = read(build("gpt", sizes));
  ASSERT_EQ(nano.initializers.size(), gpt.initializers.size());
  for (std::size_t i = 0; i < nano.initializers.size(); ++i) {
    EXPECT_EQ(nano.initializers[i].name, gpt.initializers[i].name);
    EXPECT_EQ(nano.initializers[i].value.to_doubles(), gpt.initializers[i].value.to_doubles());
  }
  EXPECT_EQ(nano.nodes.size(), gpt.nodes.size());
  EXPECT_NE(nano.graph_name, gpt.graph_name);
}

TEST(Gpt, HeadsKeepTheirWidthUnlessTheyAreCounted) {
  const auto heads_shape = [](const ZooModel& model) {
    return read(model).find_initializer("heads_shape")->value.to_int64s();
  };
  const ZooOptions wide = {.width = 256, .depth = 1, .vocab = 9, .context = 4};
  EXPECT_EQ(heads_shape(build("gpt-nano", wide)), (std::vector<std::int64_t>{-1, 4, 8, 32}));
  EXPECT_EQ(heads_shape(build("gpt", wide)), (std::vector<std::int64_t>{-1, 4, 4, 64}));
  ZooOptions counted = wide;
  counted.heads = 2;
  EXPECT_EQ(heads_shape(build("gpt", counted)), (std::vector<std::int64_t>{-1, 4, 2, 128}));
}

TEST(Gpt, RefusesHeadsThatDoNotDivideTheWidth) {
  try {
    build("gpt", {.width = 100, .heads = 3});
    FAIL() << "100 columns cannot be shared by 3 heads";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("`heads`"), std::string::npos) << error.message();
  }
  EXPECT_THROW(build("mlp", {.heads = 2}), Error);
}

TEST(Gpt, TheLargestIsPlannedWithoutItsWeights) {
  const TemporaryDirectory directory;
  ASSERT_NO_FATAL_FAILURE(test::forget_peak_memory());
  const std::int64_t before = test::kibibytes("VmRSS");  // memory of earlier tests in this process
  const ZooModel zoo =
      build("gpt", {.width = 12288, .depth = 96, .heads = 96, .vocab = 50257, .context = 256});
  const std::int64_t count = numbers(96, 12288, 50257, 256);
  EXPECT_EQ(zoo.trained_numbers, count);
  const std::uint64_t hole = zoo.onnx.write_hollow(directory / "gpt.onnx");
  EXPECT_GE(hole, 4 * static_cast<std::uint64_t>(count));
  struct stat status {};
  ASSERT_EQ(::stat((directory / "gpt.onnx.data").c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), hole);
  EXPECT_LE(status.st_blocks, 64);  // some file systems count what they note of the file

  OnnxModel model = read_onnx(directory / "gpt.onnx");
  ASSERT_EQ(model.warnings.size(), 1U);
  EXPECT_NE(model.warnings[0].find("sparse"), std::string::npos);
  auto rules = classify_tensors(model, {});
  untie_copies(model, rules);
  BuildOptions options;
  options.lower.micro_batch = 1;
  const TrainingGraph training = build_training_graph(model, rules, options);
  EXPECT_EQ(training.loss.kind, LossKind::kCausalLm);
  std::int64_t trained = 0;
  for (const Parameter& parameter : training.parameters) {
    EXPECT_TRUE(parameter.gradient) << parameter.name;
    trained += training.graph[parameter.value].type.count();
  }
  EXPECT_EQ(trained, count);
  EXPECT_THROW(check_weights_are_written(training), Error);
  EXPECT_LT(test::kibibytes("VmHWM") - before, 300 * 1024);  // the weights are 700 GB
}

}  // namespace
}  // namespace pipetrain
