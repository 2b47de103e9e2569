// What the writer changes in a file, byte by byte, and what it refuses to write.
#include "onnx_io/writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "onnx_io/builder.h"
#include "onnx_io/written_models.h"

namespace pipetrain::written_models {
namespace {

TEST_F(WriterTest, NothingNewGivesTheIdenticalFile) {
  const OnnxModel model = save(all_encodings());
  const ExportReport report = write_trained(model, {}, {}, directory_ / "out.onnx");
  EXPECT_EQ(get_file(directory_ / "out.onnx"), get_file(directory_ / "in.onnx"));
  EXPECT_TRUE(report.changes.empty());
  EXPECT_EQ(report.files, std::vector<fs::path>{directory_ / "out.onnx"});
}

TEST_F(WriterTest, WritingTheValuesThatAreThereGivesTheIdenticalFile) {
  const OnnxModel model = save(all_encodings());
  TrainedValues values;
  for (const std::string& name : kEncodings) {
    // What varints encode is stored anew; see the next test.
    if (name == "half" || name == "half_packed" || name == "bfloat") continue;
    values[name] = float_tensor({1, 2});
  }
  write_trained(model, values, {}, directory_ / "out.onnx");
  EXPECT_EQ(get_file(directory_ / "out.onnx"), get_file(directory_ / "in.onnx"));
}

TEST_F(WriterTest, EveryEncodingTakesNewValuesAndNothingElseChanges) {
  for (const std::string& name : kEncodings) {
    SCOPED_TRACE(name);
    const OnnxModel model = save(all_encodings());
    write_trained(model, {{name, float_tensor({-1.5F, 0.25F})}}, {}, directory_ / "out.onnx");
    const OnnxModel result = read_onnx(directory_ / "out.onnx");
    EXPECT_EQ(value(result, name), (std::vector<double>{-1.5, 0.25}));
    for (const std::string& other : kEncodings) {
      if (other == name) continue;
      EXPECT_EQ(value(result, other), (std::vector<double>{1, 2})) << other;
    }
    EXPECT_EQ(result.metadata.at("k"), "v");
    const std::string file = get_file(directory_ / "out.onnx");
    EXPECT_NE(file.find("a field from the future"), std::string::npos);
    const bool varints = name == "half" || name == "half_packed" || name == "bfloat";
    if (!varints) {
      EXPECT_EQ(file.size(), get_file(directory_ / "in.onnx").size());
    }
    if (result.find_initializer(name)) {
      EXPECT_EQ(result.find_initializer(name)->file_dtype,
                model.find_initializer(name)->file_dtype);
    }
  }
}

TEST_F(WriterTest, ScalarConstantsTakeNewValues) {
  const OnnxModel model = save(all_encodings());
  write_trained(model, {{"constant_scalar", HostTensor::scalar(7.0F)}}, {},
                directory_ / "out.onnx");
  EXPECT_EQ(value(read_onnx(directory_ / "out.onnx"), "constant_scalar"), std::vector<double>{7});
}

TEST_F(WriterTest, ValuesAreRoundedToTheFilesType) {
  const OnnxModel model = save(all_encodings());
  // 1 + 2^-11 lies midway between two halves; to even gives 1. 1 + 2^-8 likewise for bfloat16.
  const ExportReport report = write_trained(model,
                                            {{"half_raw", float_tensor({1 + 0x1p-11F, 65520})},
                                             {"bfloat", float_tensor({1 + 0x1p-8F, 3})}},
                                            {}, directory_ / "out.onnx");
  EXPECT_EQ(std::ranges::count(report.changes,
                               "tensor 'half_raw' has values beyond the range of float16, which "
                               "became infinite"),
            1);
  const OnnxModel result = read_onnx(directory_ / "out.onnx");
  EXPECT_EQ(value(result, "half_raw"), (std::vector<double>{1, INFINITY}));
  EXPECT_EQ(value(result, "bfloat"), (std::vector<double>{1, 3}));
}

TEST_F(WriterTest, LengthPrefixesGrowAcrossTheirBoundaries) {
  // As varints, n halves of 1.0 take 2n bytes of payload like raw_data, zeros half of that: the
  // prefixes of tensor and graph cross 128 and 16384 for some n, one byte here and one there.
  for (const int count : {1, 30, 55, 60, 61, 62, 63, 64, 100, 8100, 8150, 8170, 8190, 8200}) {
    SCOPED_TRACE(count);
    ModelParts parts = small_model();
    parts.initializers.push_back(tensor_part(
        "zeros", {count}, 10, field(5, std::string(static_cast<std::size_t>(count), '\0'))));
    const OnnxModel model = save(parts);
    const std::vector<float> ones(static_cast<std::size_t>(count), 1.0F);
    write_trained(model, {{"zeros", float_tensor(ones)}}, {}, directory_ / "out.onnx");
    const OnnxModel result = read_onnx(directory_ / "out.onnx");
    EXPECT_EQ(value(result, "zeros"), std::vector<double>(ones.begin(), ones.end()));
    EXPECT_EQ(result.outputs.at(0).name, "y");
  }
}

TEST_F(WriterTest, CopiesOfSharedTensorsAreAddedAndInputsRewritten) {
  ModelParts parts = small_model();
  parts.nodes = {node_part("MatMul", {"x", "W"}, {"h"}, {}, "first"),
                 node_part("MatMul", {"h", "W"}, {"y"}, {}, "second")};
  const OnnxModel model = save(parts);
  ExportEdits edits;
  edits.added.push_back({"second.W", matrix(3), "W"});
  edits.rewritten.push_back({1, 1, "second.W"});
  edits.metadata = {{"pipetrain.data", "synthetic"}};
  const ExportReport report =
      write_trained(model, {{"W", matrix(2)}}, edits, directory_ / "out.onnx");
  EXPECT_EQ(report.changes.size(), 3U);
  const OnnxModel result = read_onnx(directory_ / "out.onnx");
  EXPECT_EQ(result.nodes[0].inputs[1], "W");
  EXPECT_EQ(result.nodes[1].inputs[1], "second.W");
  EXPECT_EQ(value(result, "W")[15], 2);
  EXPECT_EQ(value(result, "second.W")[0], 3);
  EXPECT_EQ(result.metadata.at("pipetrain.data"), "synthetic");
  // Once more: the key is there now, and with another value it is replaced, not repeated.
  edits = {};
  edits.metadata = {{"pipetrain.data", "a real one"}};
  write_trained(result, {}, edits, directory_ / "again.onnx");
  EXPECT_EQ(read_onnx(directory_ / "again.onnx").metadata.at("pipetrain.data"), "a real one");
  EXPECT_EQ(get_file(directory_ / "again.onnx").size(),
            get_file(directory_ / "out.onnx").size() + 1);
}

TEST_F(WriterTest, BeforeIr4AddedInitializersAreInputsToo) {
  ModelParts parts = small_model();
  parts.ir_version = 3;
  parts.inputs.push_back(value_part("W", DType::kFloat32, {{"", 4}, {"", 4}}));
  const OnnxModel model = save(parts);
  ExportEdits edits;
  edits.added.push_back({"copy", matrix(3), "W"});
  write_trained(model, {}, edits, directory_ / "out.onnx");
  const std::string file = get_file(directory_ / "out.onnx");
  std::size_t mentions = 0;
  for (std::size_t at = 0; (at = file.find("copy", at)) != std::string::npos; ++at) ++mentions;
  EXPECT_EQ(mentions, 2U);
  EXPECT_EQ(read_onnx(directory_ / "out.onnx").inputs.size(), 1U);
}

TEST_F(WriterTest, ConstantsOfFunctionsAreWrittenIfThereIsOnePlaceForOneValue) {
  const std::string body =
      function_part("d", "F", {"a"}, {"b"},
                    {node_part("Constant", {}, {"c"},
                               {OnnxAttribute::of_tensor("value", float_tensor({1, 2}))}, "k"),
                     node_part("Mul", {"a", "c"}, {"b"})});
  ModelParts parts = small_model();
  parts.functions = {body};
  parts.opsets.push_back(encode_opset("d", 1));
  parts.nodes = {node_part("F", {"x"}, {"y"}, {}, "f", "d")};
  const OnnxModel once = save(parts);
  EXPECT_EQ(why_not_writable(once, TensorsByName(once), "f/c"), "");
  write_trained(once, {{"f/c", float_tensor({5, 6})}}, {}, directory_ / "out.onnx");
  EXPECT_EQ(value(read_onnx(directory_ / "out.onnx"), "f/c"), (std::vector<double>{5, 6}));

  parts.nodes = {node_part("F", {"x"}, {"m"}, {}, "f", "d"),
                 node_part("F", {"m"}, {"y"}, {}, "g", "d")};
  const OnnxModel twice = save(parts);
  EXPECT_NE(why_not_writable(twice, TensorsByName(twice), "f/c").find("called 2 times"),
            std::string::npos);
  EXPECT_EQ(kind_of_failure([&] {
              write_trained(twice, {{"f/c", float_tensor({5, 6})}}, {}, directory_ / "twice.onnx");
            }),
            ErrorKind::kModel);
}

TEST_F(WriterTest, SaysWhatCannotBeWritten) {
  const OnnxModel model = save(all_encodings());
  EXPECT_EQ(why_not_writable(model, TensorsByName(model), "raw"), "");
  EXPECT_EQ(why_not_writable(model, TensorsByName(model), "constant"), "");
  EXPECT_NE(why_not_writable(model, TensorsByName(model), "steps").find("int64"),
            std::string::npos);
  EXPECT_NE(why_not_writable(model, TensorsByName(model), "nobody"), "");
  EXPECT_NE(why_not_writable(model, TensorsByName(model), "y"), "") << "y is no constant";
}

TEST_F(WriterTest, RefusesToOverwriteTheInputUnlessAsked) {
  const OnnxModel model = save(small_model());
  EXPECT_EQ(kind_of_failure([&] { write_trained(model, {}, {}, directory_ / "./in.onnx"); }),
            ErrorKind::kUsage);
  write_trained(model, {{"W", matrix(4)}}, {}, directory_ / "in.onnx", {.overwrite_input = true});
  EXPECT_EQ(value(read_onnx(directory_ / "in.onnx"), "W")[3], 4);
}

TEST_F(WriterTest, RefusesASourceThatHasChanged) {
  const OnnxModel model = save(small_model());
  ModelParts other = small_model();
  other.nodes = {node_part("MatMul", {"x", "W"}, {"y"}, {}, "nn")};
  put_file(directory_ / "in.onnx", other.bytes());
  EXPECT_EQ(kind_of_failure([&] { write_trained(model, {}, {}, directory_ / "out.onnx"); }),
            ErrorKind::kModel);
  EXPECT_FALSE(fs::exists(directory_ / "out.onnx"));
}

TEST_F(WriterTest, FailingLeavesNothingBehind) {
  const OnnxModel model = save(small_model());
  EXPECT_EQ(
      kind_of_failure([&] { write_trained(model, {}, {}, directory_ / "nowhere" / "out.onnx"); }),
      ErrorKind::kResource);
  EXPECT_EQ(kind_of_failure([&] {
              write_trained(model, {{"W", float_tensor({1})}}, {}, directory_ / "out.onnx");
            }),
            ErrorKind::kInternal);
  EXPECT_EQ(count_entries(), 1);
}

}  // namespace
}  // namespace pipetrain::written_models
