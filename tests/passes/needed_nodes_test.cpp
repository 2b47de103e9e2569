// What has no kernels is refused where an output needs it, and nowhere else.
#include "passes/needed_nodes.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "onnx_io/encode.h"
#include "onnx_io/reader.h"
#include "passes/lower.h"
#include "support/onnx_parts.h"
#include "support/test_tensors.h"

namespace pipetrain {
namespace {

/// y = x W, and a label made of strings by a node of this operator.
ModelParts with_names(const std::string& op, bool as_constant) {
  ModelParts parts = small_model();
  const std::string strings =
      tensor_part(as_constant ? "" : "names", {2}, 8, field(6, "cat") + field(6, "dog"));
  if (as_constant) {
    parts.nodes.push_back(
        node_part("Constant", {}, {"names"}) +
        field(5, field(1, "value") + field(5, strings) + field(20, std::int64_t{4})));
  } else {
    parts.initializers.push_back(strings);
  }
  parts.initializers.push_back(
      encode_tensor("index", HostTensor::of<std::int64_t>({1}, std::vector<std::int64_t>{0})));
  parts.nodes.push_back(node_part(op, {"names", "index"}, {"label"}, {}, "choice"));
  parts.outputs.push_back(value_part("label", DType::kInt64, {{"", 1}}));
  return parts;
}

std::size_t lowered(const ModelParts& parts, const std::string& output_node) {
  const std::string bytes = parts.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes)), {});
  LowerOptions options;
  options.output_node = output_node;
  return lower(model, classify_tensors(model, {}), options).outputs.size();
}

TEST(NeededNodes, StringsMatterWhereTheyAreNeeded) {
  for (const bool as_constant : {false, true}) {
    SCOPED_TRACE(as_constant);
    const ModelParts gathered = with_names("Gather", as_constant);
    EXPECT_EQ(lowered(gathered, "y"), 1U);
    for (const std::string& output : {std::string(), std::string("label")}) {
      test::expect_error(ErrorKind::kModel, "strings cannot be trained or computed with",
                         [&] { lowered(gathered, output); });
      test::expect_error(ErrorKind::kModel,
                         "output \"y\" needs nothing of that: `output-node` y leaves out the rest",
                         [&] { lowered(gathered, output); });
    }
  }
  test::expect_error(ErrorKind::kModel, "node 'choice' (Gather, #1): its input tensor 'names'",
                     [&] { lowered(with_names("Gather", false), ""); });
}

TEST(NeededNodes, AnErrorNamesAnOutputThatNeedsNoOtherOperators) {
  const ModelParts unknown = with_names("LabelTable", false);
  EXPECT_EQ(lowered(unknown, "y"), 1U);
  test::expect_error(ErrorKind::kModel, "1 operator is not supported here; output \"y\" needs",
                     [&] { lowered(unknown, ""); });
  test::expect_error(ErrorKind::kModel, "\n  TableOfLabelsAndProbabilities 1 node ",
                     [] { lowered(with_names("TableOfLabelsAndProbabilities", false), ""); });
  ModelParts alone = small_model();
  alone.nodes = {node_part("LabelTable", {"x"}, {"y"})};
  ModelParts counted = alone;  // with an output of integers, which cannot be trained
  counted.nodes.push_back(node_part("ArgMax", {"x"}, {"largest"}));
  counted.outputs.push_back(value_part("largest", DType::kInt64, {{"", 1}, {"", 4}}));
  for (const ModelParts& parts : {alone, counted}) {
    try {
      lowered(parts, "");
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("output-node"), std::string::npos) << error.what();
    }
  }
  counted.nodes.push_back(node_part("Relu", {"x"}, {"z"}));
  counted.outputs.push_back(value_part("z", DType::kFloat32, {{"", 1}, {"", 4}}));
  test::expect_error(ErrorKind::kModel, "not supported here; output \"z\" needs nothing of that",
                     [&] { lowered(counted, ""); });
}

TEST(NeededNodes, InputsThatNothingNeedsAreLeftOut) {
  ModelParts parts = small_model();
  parts.inputs.insert(parts.inputs.begin(), value_part("old", DType::kFloat32, {{"", 3}}));
  parts.inputs.push_back(value_part("z", DType::kFloat32, {{"", 1}}));
  parts.nodes.push_back(node_part("Relu", {"z"}, {"w"}, {}, "last"));
  parts.outputs.push_back(value_part("w", DType::kFloat32, {{"", 1}}));
  const std::string bytes = parts.bytes();
  const OnnxModel model = read_onnx_bytes(std::as_bytes(std::span(bytes)), {});
  const auto names = [&](const std::string& output_node) {
    std::string out;
    for (const OnnxValue& input : needed_inputs(model, output_node)) out += input.name;
    return out;
  };
  EXPECT_EQ(names(""), "xz");
  EXPECT_EQ(names("y"), "x");
  EXPECT_EQ(names("last"), "z");
  test::expect_error(ErrorKind::kUsage, "no node or value named \"nothing\"",
                     [&] { names("nothing"); });
}

}  // namespace
}  // namespace pipetrain
