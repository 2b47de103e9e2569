#include <gtest/gtest.h>

#include "onnx_io/reader.h"
#include "passes/build.h"
#include "zoo/zoo.h"

namespace pipetrain {
namespace {

TEST(LstmNetwork, TrainsTheParametersOfItsFormula) {
  const ZooModel zoo = build_zoo_network(*find_zoo_network("lstm"),
                                         {.width = 24, .depth = 3, .vocab = 11, .context = 5});
  // Embedding, layers of 8 C^2 weights and 8 C biases, and the head.
  EXPECT_EQ(zoo.trained_numbers, 11 * 24 + 3 * (8 * 24 * 24 + 8 * 24) + 24 * 11 + 11);
  const std::string bytes = zoo.onnx.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
  BuildOptions options;
  options.lower.micro_batch = 2;
  const TrainingGraph training = build_training_graph(model, classify_tensors(model, {}), options);
  std::int64_t trained = 0;
  for (const Parameter& parameter : training.parameters) {
    EXPECT_TRUE(static_cast<bool>(parameter.gradient)) << parameter.name;
    trained += training.graph[parameter.value].type.count();
  }
  EXPECT_EQ(trained, zoo.trained_numbers);
  EXPECT_EQ(training.loss.kind, LossKind::kCausalLm);
  EXPECT_EQ(training.inputs.at(0).upper_bound, 11);
}

}  // namespace
}  // namespace pipetrain
