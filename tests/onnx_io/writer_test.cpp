#include "onnx_io/writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "onnx_io/builder.h"
#include "onnx_io/encode.h"
#include "onnx_io/reader.h"
#include "support/onnx_parts.h"
#include "support/peak_memory.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::vector<float>& values) {
  std::string out(values.size() * sizeof(float), '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

HostTensor float_tensor(const std::vector<float>& values) {
  return HostTensor::of<float>(Shape{static_cast<std::int64_t>(values.size())}, values);
}

HostTensor matrix(float value) {
  return HostTensor::of<float>({4, 4}, std::vector<float>(16, value));
}

class WriterTest : public ::testing::Test {
 protected:
  // A file with every way to store floats: names, types and payloads around the bytes under
  // test.
  static ModelParts all_encodings() {
    ModelParts parts = small_model();
    std::string unpacked;
    for (const char* part : {"\x25\x00\x00\x80\x3f", "\x25\x00\x00\x00\x40"}) {
      unpacked += std::string(part, 5);
    }
    // Doubles 1 and 2; halves 0x3c00 (1) and 0x4000 (2); bfloat16 0x3f80 and 0x4000.
    const std::string doubles("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", 16);
    const std::string halves = field(5, std::int64_t{0x3c00}) + field(5, std::int64_t{0x4000});
    const std::string packed_halves = field(5, std::string("\x80\x78\x80\x80\x01", 5));
    const std::string bfloats = field(5, std::int64_t{0x3f80}) + field(5, std::int64_t{0x4000});
    parts.initializers.push_back(tensor_part("raw", {2}, 1, raw_data(bytes_of({1, 2}))));
    parts.initializers.push_back(tensor_part("packed", {2}, 1, field(4, bytes_of({1, 2}))));
    parts.initializers.push_back(tensor_part("unpacked", {2}, 1, unpacked));
    parts.initializers.push_back(tensor_part("double", {2}, 11, field(10, doubles)));
    parts.initializers.push_back(
        tensor_part("half_raw", {2}, 10, raw_data(std::string("\0\x3c\0\x40", 4))));
    parts.initializers.push_back(tensor_part("half", {2}, 10, halves));
    parts.initializers.push_back(tensor_part("half_packed", {2}, 10, packed_halves));
    parts.initializers.push_back(tensor_part("bfloat", {2}, 16, bfloats));
    parts.initializers.push_back(encode_tensor("steps", HostTensor::scalar<std::int64_t>(3)));
    parts.nodes.push_back(node_part("Constant", {}, {"constant"},
                                    {OnnxAttribute::of_tensor("value", float_tensor({1, 2}))}));
    parts.nodes.push_back(node_part("Constant", {}, {"constant_list"},
                                    {OnnxAttribute::of_floats("value_floats", {1, 2})}));
    parts.nodes.push_back(node_part("Constant", {}, {"constant_scalar"},
                                    {OnnxAttribute::of_float("value_float", 1)}));
    parts.model_tail = field(100, "a field from the future") + field(14, encode_pair("k", "v"));
    return parts;
  }

  OnnxModel save(const ModelParts& parts, const std::string& name = "in.onnx") {
    put_file(directory_ / name, parts.bytes());
    return read_onnx(directory_ / name);
  }

  static std::vector<double> value(const OnnxModel& model, const std::string& name) {
    if (const OnnxInitializer* found = model.find_initializer(name)) {
      return found->value.to_doubles();
    }
    const auto node = std::ranges::find_if(
        model.nodes, [&](const OnnxNode& n) { return n.outputs.at(0) == name; });
    return constant_value(*node).to_doubles();
  }

  static ErrorKind kind_of_failure(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kAssertion;
  }

  std::ptrdiff_t count_entries() const {
    return std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator());
  }

  TemporaryDirectory directory_;
};

const std::vector<std::string> kEncodings = {"raw",      "packed",       "unpacked",    "double",
                                             "half_raw", "half",         "half_packed", "bfloat",
                                             "constant", "constant_list"};

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
  write_trained(model,
                {{"half_raw", float_tensor({1 + 0x1p-11F, 65520})},
                 {"bfloat", float_tensor({1 + 0x1p-8F, 3})}},
                {}, directory_ / "out.onnx");
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

class ExternalWriterTest : public WriterTest {
 protected:
  void SetUp() override { fs::create_directory(directory_ / "other"); }

  static std::string external(const std::string& name, const std::string& location,
                              const std::string& offset,
                              std::vector<std::pair<std::string, std::string>> more = {}) {
    more.insert(more.begin(), {{"location", location}, {"offset", offset}, {"length", "8"}});
    return tensor_part(name, {2}, 1, external_data(more));
  }

  OnnxModel save_external(const std::vector<std::string>& tensors) {
    ModelParts parts = small_model();
    for (const std::string& tensor : tensors) parts.initializers.push_back(tensor);
    return save(parts);
  }

  const std::string data_ = "head" + bytes_of({1, 2, 3, 4}) + "tail";
};

TEST_F(ExternalWriterTest, InAnotherDirectoryEverythingKeepsItsName) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model =
      save_external({external("a", "in.data", "4"), external("b", "in.data", "12")});
  const ExportReport report =
      write_trained(model, {{"b", float_tensor({7, 8})}}, {}, directory_ / "other/out.onnx");
  EXPECT_TRUE(report.changes.empty());
  EXPECT_EQ(get_file(directory_ / "other/out.onnx"), get_file(directory_ / "in.onnx"));
  EXPECT_EQ(get_file(directory_ / "other/in.data"), "head" + bytes_of({1, 2, 7, 8}) + "tail");
  EXPECT_EQ(get_file(directory_ / "in.data"), data_);
  // Exported again, the file that belongs to the old output is replaced.
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "other/out.onnx");
  EXPECT_EQ(get_file(directory_ / "other/in.data"), "head" + bytes_of({5, 6, 3, 4}) + "tail");
  EXPECT_EQ(get_file(directory_ / "other/out.onnx"), get_file(directory_ / "in.onnx"));
}

TEST_F(ExternalWriterTest, WithoutChangesTheDataAreCopiedOnlyWhereTheyAreMissing) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model = save_external({external("a", "in.data", "4")});
  write_trained(model, {}, {}, directory_ / "other/out.onnx");
  EXPECT_EQ(get_file(directory_ / "other/in.data"), data_);
  write_trained(model, {}, {}, directory_ / "out.onnx");
  EXPECT_EQ(get_file(directory_ / "out.onnx"), get_file(directory_ / "in.onnx"));
  EXPECT_EQ(count_entries(), 4);  // in.onnx, in.data, out.onnx, other
}

TEST_F(ExternalWriterTest, BesideTheInputTheDataGetTheOutputsName) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model =
      save_external({external("a", "in.data", "4"), external("b", "in.data", "12")});
  const ExportReport report =
      write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "out.onnx");
  EXPECT_EQ(report.changes.size(), 1U);
  EXPECT_EQ(report.files,
            (std::vector<fs::path>{directory_ / "out.onnx.data", directory_ / "out.onnx"}));
  EXPECT_EQ(get_file(directory_ / "in.data"), data_);
  const OnnxModel result = read_onnx(directory_ / "out.onnx");
  EXPECT_EQ(value(result, "a"), (std::vector<double>{5, 6}));
  EXPECT_EQ(value(result, "b"), (std::vector<double>{3, 4}));
}

TEST_F(ExternalWriterTest, FilesOfOthersAreNotReplaced) {
  put_file(directory_ / "Makefile", data_);  // a location made to hit something in the output
  put_file(directory_ / "other/Makefile", "precious");
  const OnnxModel model = save_external({external("a", "Makefile", "4")});
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "other/out.onnx");
  EXPECT_EQ(get_file(directory_ / "other/Makefile"), "precious");
  EXPECT_EQ(value(read_onnx(directory_ / "other/out.onnx"), "a"), (std::vector<double>{5, 6}));
}

TEST_F(ExternalWriterTest, LocationsInSubdirectoriesAndHiddenNamesAreNotUsed) {
  fs::create_directory(directory_ / "sub");
  put_file(directory_ / "sub/w.bin", data_);
  put_file(directory_ / ".profile", data_);
  const OnnxModel model =
      save_external({external("a", "sub/w.bin", "4"), external("b", ".profile", "4")});
  write_trained(model, {}, {}, directory_ / "other/out.onnx");
  EXPECT_FALSE(fs::exists(directory_ / "other/sub"));
  EXPECT_FALSE(fs::exists(directory_ / "other/.profile"));
  const OnnxModel result = read_onnx(directory_ / "other/out.onnx");
  EXPECT_EQ(value(result, "a"), (std::vector<double>{1, 2}));
  EXPECT_EQ(value(result, "b"), (std::vector<double>{1, 2}));
}

TEST_F(ExternalWriterTest, TensorsThatShareBytesArePartedWhenOneChanges) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model =
      save_external({external("a", "in.data", "4"), external("b", "in.data", "4"),
                     external("c", "in.data", "8")});
  const std::map<std::string, std::vector<double>> before = {
      {"a", {1, 2}}, {"b", {1, 2}}, {"c", {2, 3}}};
  for (const std::string changed : {"a", "b", "c"}) {
    const fs::path output = directory_ / (changed + ".onnx");
    write_trained(model, {{changed, float_tensor({7, 8})}}, {}, output);
    const OnnxModel result = read_onnx(output);
    for (const auto& [name, same] : before)
      EXPECT_EQ(value(result, name), name == changed ? std::vector<double>({7, 8}) : same) << name;
  }
}

TEST_F(ExternalWriterTest, AddedCopiesOfExternalTensorsAreExternalToo) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model = save_external({external("a", "in.data", "4", {{"checksum", "abc"}})});
  ExportEdits edits;
  edits.added.push_back({"a2", float_tensor({7, 8}), "a"});
  const ExportReport report =
      write_trained(model, {{"a", float_tensor({5, 6})}}, edits, directory_ / "out.onnx");
  const OnnxModel result = read_onnx(directory_ / "out.onnx");
  EXPECT_EQ(value(result, "a"), (std::vector<double>{5, 6}));
  EXPECT_EQ(value(result, "a2"), (std::vector<double>{7, 8}));
  EXPECT_TRUE(result.find_initializer("a2")->external);
  // Behind the 24 bytes that were there, at the next multiple of 64.
  EXPECT_EQ(get_file(directory_ / "out.onnx.data").find(bytes_of({7, 8})), 64U);
  EXPECT_EQ(get_file(directory_ / "out.onnx").find("checksum"), std::string::npos);
}

TEST_F(ExternalWriterTest, TheInputAndItsDataMayBeReplacedWhenAsked) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model = save_external({external("a", "in.data", "4")});
  EXPECT_EQ(kind_of_failure([&] { write_trained(model, {}, {}, directory_ / "in.data"); }),
            ErrorKind::kUsage);
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "in.onnx",
                {.overwrite_input = true});
  EXPECT_EQ(get_file(directory_ / "in.data"), "head" + bytes_of({5, 6, 3, 4}) + "tail");
  EXPECT_EQ(value(read_onnx(directory_ / "in.onnx"), "a"), (std::vector<double>{5, 6}));
}

TEST_F(ExternalWriterTest, TheBuilderWritesExternalDataToo) {
  OnnxBuilder builder("big");
  builder.input("x", DType::kFloat32, {{"", 2}});
  builder.output("y", DType::kFloat32, {{"", 2}});
  builder.initializer("a", float_tensor({1, 2}));
  builder.initializer("b", float_tensor({3, 4, 5}));
  builder.node("Add", {"x", "a"}, {"y"});
  builder.write(directory_ / "big.onnx", /*external_above=*/10);
  EXPECT_TRUE(fs::exists(directory_ / "big.onnx.data"));
  const OnnxModel model = read_onnx(directory_ / "big.onnx");
  EXPECT_TRUE(model.find_initializer("a")->external);
  EXPECT_EQ(value(model, "b"), (std::vector<double>{3, 4, 5}));
  builder.write(directory_ / "small.onnx");
  EXPECT_FALSE(fs::exists(directory_ / "small.onnx.data"));
}

TEST_F(ExternalWriterTest, LargeTensorsAreInMemoryOneAtATime) {
  constexpr std::int64_t kTensors = 16, kElements = std::int64_t{2} << 20;  // 8 MiB each
  OnnxBuilder builder("large");
  for (std::int64_t i = 0; i < kTensors; ++i) {
    builder.initializer("w" + std::to_string(i), {DType::kFloat32, Shape{kElements}}, [] {
      return HostTensor({DType::kFloat32, Shape{kElements}});
    });
  }
  builder.output("y", DType::kFloat32, {});
  builder.node("Relu", {"w0"}, {"y"});
  builder.write(directory_ / "in.onnx", 0);
  const OnnxModel model = read_onnx(directory_ / "in.onnx");
  TrainedValues values;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    values["w" + std::to_string(i)] = [i] {
      HostTensor value({DType::kFloat32, Shape{kElements}});
      std::ranges::fill(value.span<float>(), static_cast<float>(i + 1));
      return value;
    };
  }
  test::forget_peak_memory();
  const std::int64_t before = test::kibibytes("VmRSS");
  write_trained(model, values, {}, directory_ / "out.onnx");
  // Of 128 MiB. AddressSanitizer keeps what is freed for a while.
  if (!test::keeps_freed_memory()) EXPECT_LT(test::kibibytes("VmHWM") - before, 32 * 1024);
  const OnnxModel written = read_onnx(directory_ / "out.onnx");
  for (std::int64_t i = 0; i < kTensors; ++i) {
    const HostTensor& value = written.find_initializer("w" + std::to_string(i))->value;
    EXPECT_EQ(value.span<float>().front(), static_cast<float>(i + 1));
    EXPECT_EQ(value.span<float>().back(), static_cast<float>(i + 1));
  }
}

// The official implementation reads what is written here, and finds the same numbers in it.
TEST_F(ExternalWriterTest, TheOnnxPackageReadsTheResult) {
  const char* python = std::getenv("PIPETRAIN_ORACLE_PYTHON");
  if (!python) GTEST_SKIP() << "PIPETRAIN_ORACLE_PYTHON names no Python with the onnx package";
  put_file(directory_ / "in.data", data_);
  ModelParts parts = all_encodings();
  parts.initializers.push_back(external("external", "in.data", "4"));
  const OnnxModel model = save(parts);
  TrainedValues values;
  for (const std::string& name : kEncodings) values[name] = float_tensor({-1.5F, 0.25F});
  values["external"] = float_tensor({-1.5F, 0.25F});
  ExportEdits edits;
  edits.added.push_back({"W2", matrix(3), "W"});
  edits.rewritten.push_back({0, 1, "W2"});
  write_trained(model, values, edits, directory_ / "out.onnx");
  put_file(directory_ / "check.py", R"(
import sys, onnx
from onnx import numpy_helper
model = onnx.load(sys.argv[1])
onnx.checker.check_model(model)
names = {t.name: numpy_helper.to_array(t).astype("float64").ravel().tolist() for t in model.graph.initializer}
for node in model.graph.node:
    for a in node.attribute:
        if a.name == "value": names[node.output[0]] = numpy_helper.to_array(a.t).tolist()
        if a.name == "value_floats": names[node.output[0]] = list(a.floats)
assert names.pop("W2") == [3.0] * 16 and names.pop("W") == [0.0] * 16 and names.pop("steps") == [3.0]
assert len(names) == 11 and all(v == [-1.5, 0.25] for v in names.values()), names
assert model.graph.node[0].input[1] == "W2"
)");
  const std::string command = std::string(python) + " " + (directory_ / "check.py").string() + " " +
                              (directory_ / "out.onnx").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace pipetrain
