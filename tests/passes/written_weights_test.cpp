// Tensors without values may be planned with, as trained ones, and nothing else.
#include "passes/written_weights.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "support/onnx_parts.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

TrainingGraph built(const OnnxModel& model, const ParameterOptions& parameters = {}) {
  BuildOptions options;
  options.lower.micro_batch = 1;
  auto rules = classify_tensors(model, parameters);
  freeze_tensors(rules, parameters);
  return build_training_graph(model, rules, options);
}

void refused(const std::function<void()>& body, const std::string& with) {
  try {
    body();
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    EXPECT_NE(error.message().find(with), std::string::npos) << error.message();
  }
}

// y = x (1, 4) @ W (4, 4), W in a data file that was never written.
OnnxModel hollow(const TemporaryDirectory& directory) {
  OnnxBuilder builder("net");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.output("y", DType::kFloat32, {{"batch", -1}, {"", 4}});
  builder.initializer("W", {DType::kFloat32, {4, 4}}, [] { return HostTensor(); });
  builder.node("MatMul", {"x", "W"}, {"y"});
  builder.write_hollow(directory / "net.onnx");
  return read_onnx(directory / "net.onnx");
}

TEST(WrittenWeights, AreNeededToTrainButNotToPlan) {
  const TemporaryDirectory directory;
  const TrainingGraph training = built(hollow(directory));
  ASSERT_EQ(training.parameters.size(), 1U);
  EXPECT_TRUE(training.parameters[0].gradient);
  EXPECT_EQ(training.graph[training.parameters[0].value].type.shape, (Shape{4, 4}));
  refused([&] { check_weights_are_written(training); }, "`weights` random");
  const std::string bytes = small_model().bytes();
  check_weights_are_written(
      built(read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {})));
}

TEST(WrittenWeights, AreNeededOfConstants) {
  const TemporaryDirectory directory;
  ParameterOptions frozen;
  frozen.freeze = {"W"};
  refused([&] { built(hollow(directory), frozen); }, "never written");
  // A table of integers, and the value of a Constant.
  const std::string place =
      external_data({{"location", "net.onnx.data"}, {"offset", "0"}, {"length", "32"}});
  put_file(directory / "net.onnx.data", "");
  std::filesystem::resize_file(directory / "net.onnx.data", 64);
  ModelParts parts = small_model();
  parts.initializers.push_back(tensor_part("rows", {4}, 7, place));
  parts.nodes = {node_part("Gather", {"W", "rows"}, {"V"}), node_part("MatMul", {"x", "V"}, {"y"})};
  put_file(directory / "net.onnx", parts.bytes());
  refused([&] { built(read_onnx(directory / "net.onnx")); }, "never written");
  parts = small_model();
  const std::string value = field(1, std::string("value")) +
                            field(5, tensor_part("", {4, 2}, 1, place)) +
                            field(20, std::int64_t{4});
  parts.nodes = {field(2, std::string("V")) + field(4, std::string("Constant")) + field(5, value),
                 node_part("MatMul", {"x", "V"}, {"y"})};
  put_file(directory / "net.onnx", parts.bytes());
  refused([&] { built(read_onnx(directory / "net.onnx")); }, "is sparse and has no values");
}

}  // namespace
}  // namespace pipetrain
