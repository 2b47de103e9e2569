// Models whose tensors are in files of their own: what is copied, rewritten and left alone.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "onnx_io/builder.h"
#include "onnx_io/delete_model.h"
#include "onnx_io/written_models.h"
#include "support/peak_memory.h"

namespace pipetrain::written_models {
namespace {

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

TEST_F(ExternalWriterTest, DataNamedAfterTheSourceGoWithTheOutput) {
  put_file(directory_ / "last.onnx.data", data_);
  ModelParts parts = small_model();
  parts.initializers.push_back(external("a", "last.onnx.data", "4"));
  const OnnxModel model = save(parts, "last.onnx");
  write_trained(model, {}, {}, directory_ / "other/trained.onnx");
  EXPECT_EQ(get_file(directory_ / "other/trained.onnx.data"), data_);
  EXPECT_FALSE(fs::exists(directory_ / "other/last.onnx.data"));
  EXPECT_EQ(value(read_onnx(directory_ / "other/trained.onnx"), "a"), (std::vector<double>{1, 2}));
  // Under the name of the source they keep theirs.
  write_trained(model, {}, {}, directory_ / "other/last.onnx");
  EXPECT_EQ(get_file(directory_ / "other/last.onnx"), get_file(directory_ / "last.onnx"));
  EXPECT_EQ(get_file(directory_ / "other/last.onnx.data"), data_);
}

TEST_F(ExternalWriterTest, ADeletedModelTakesOnlyItsOwnDataAlong) {
  put_file(directory_ / "in.onnx.data", data_);
  save_external({external("a", "in.onnx.data", "4")});
  fs::rename(directory_ / "in.onnx", directory_ / "renamed.onnx");
  delete_model(directory_ / "in.onnx");  // which is not there
  EXPECT_EQ(value(read_onnx(directory_ / "renamed.onnx"), "a"), (std::vector<double>{1, 2}));
  fs::rename(directory_ / "renamed.onnx", directory_ / "in.onnx");
  delete_model(directory_ / "in.onnx");
  EXPECT_EQ(count_entries(), 1);  // other
}

TEST_F(ExternalWriterTest, FilesOfOthersAreNotReplaced) {
  put_file(directory_ / "Makefile", data_);  // a location made to hit something in the output
  put_file(directory_ / "other/Makefile", "precious");
  const OnnxModel model = save_external({external("a", "Makefile", "4")});
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "other/out.onnx");
  EXPECT_EQ(get_file(directory_ / "other/Makefile"), "precious");
  EXPECT_EQ(value(read_onnx(directory_ / "other/out.onnx"), "a"), (std::vector<double>{5, 6}));
}

TEST_F(ExternalWriterTest, DataOfAnotherModelAreNotReplaced) {
  put_file(directory_ / "in.data", data_);
  put_file(directory_ / "out.onnx.data", "precious");  // of a model that was renamed
  const OnnxModel model = save_external({external("a", "in.data", "4")});
  for (const float x : {5.0F, 7.0F}) {
    write_trained(model, {{"a", float_tensor({x, 6})}}, {}, directory_ / "out.onnx");
    EXPECT_EQ(get_file(directory_ / "out.onnx.data"), "precious");
    EXPECT_EQ(value(read_onnx(directory_ / "out.onnx"), "a"), (std::vector<double>{x, 6}));
  }
  EXPECT_TRUE(fs::exists(directory_ / "out.onnx.1.data"));
  EXPECT_FALSE(fs::exists(directory_ / "out.onnx.2.data"));
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

TEST_F(ExternalWriterTest, TensorsThatEndWithTheirFileGetALengthWhenItGrows) {
  put_file(directory_ / "in.data", bytes_of({1, 2}));
  const OnnxModel model =
      save_external({tensor_part("a", {2}, 1, external_data({{"location", "in.data"}}))});
  ExportEdits edits;
  edits.added.push_back({"a2", float_tensor({7, 8}), "a"});
  write_trained(model, {}, edits, directory_ / "out.onnx");
  const OnnxModel result = read_onnx(directory_ / "out.onnx");
  EXPECT_EQ(value(result, "a"), (std::vector<double>{1, 2}));
  EXPECT_EQ(value(result, "a2"), (std::vector<double>{7, 8}));
  const std::string file = get_file(directory_ / "out.onnx"), length = encode_pair("length", "8");
  const std::size_t first = file.find(length);
  ASSERT_NE(first, std::string::npos);
  EXPECT_NE(file.find(length, first + 1), std::string::npos);
}

TEST_F(ExternalWriterTest, DataThatHaveChangedAreRefused) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model = save_external({external("a", "in.data", "4")});
  put_file(directory_ / "in.data", std::string(data_.size(), 'x'));
  fs::last_write_time(directory_ / "in.data",
                      fs::last_write_time(directory_ / "in.data") + std::chrono::seconds(1));
  EXPECT_EQ(kind_of_failure([&] {
              write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "out.onnx");
            }),
            ErrorKind::kModel);
  EXPECT_FALSE(fs::exists(directory_ / "out.onnx"));
}

TEST_F(ExternalWriterTest, TensorsOfTypesThatAreNotReadGoAlong) {
  constexpr std::int64_t kInt4 = 22;
  put_file(directory_ / "in.data", data_);
  put_file(directory_ / "more.data", "ab");
  const OnnxModel model = save_external(
      {external("a", "in.data", "4"),
       tensor_part("q", {4}, kInt4, external_data({{"location", "in.data"}, {"length", "2"}})),
       tensor_part("r", {4}, kInt4, external_data({{"location", "more.data"}}))});
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "out.onnx");
  EXPECT_EQ(get_file(directory_ / "out.onnx").find("in.data"), std::string::npos);
  EXPECT_EQ(value(read_onnx(directory_ / "out.onnx"), "a"), (std::vector<double>{5, 6}));
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "other/out.onnx");
  EXPECT_EQ(get_file(directory_ / "other/in.data"), "head" + bytes_of({5, 6, 3, 4}) + "tail");
  EXPECT_EQ(get_file(directory_ / "other/more.data"), "ab");
  fs::remove(directory_ / "more.data");
  EXPECT_EQ(kind_of_failure([&] { read_onnx(directory_ / "in.onnx"); }), ErrorKind::kModel);
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

TEST_F(ExternalWriterTest, DataThatAnotherModelUsesTooAreNotReplaced) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model = save_external({external("a", "in.data", "4")});
  fs::copy_file(directory_ / "in.onnx", directory_ / "backup.onnx");
  // Neighbours that are no models do not matter.
  put_file(directory_ / "text.onnx", "no model");
  fs::create_directory(directory_ / "folder.onnx");
  fs::create_symlink("nowhere", directory_ / "link.onnx");
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "in.onnx",
                {.overwrite_input = true});
  EXPECT_EQ(get_file(directory_ / "in.data"), data_);
  EXPECT_EQ(value(read_onnx(directory_ / "in.onnx"), "a"), (std::vector<double>{5, 6}));
  EXPECT_EQ(value(read_onnx(directory_ / "backup.onnx"), "a"), (std::vector<double>{1, 2}));
}

TEST_F(ExternalWriterTest, NewDataTakeNoNameThatAnotherModelUses) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model = save_external({external("a", "in.data", "4")});
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "out.onnx");
  fs::copy_file(directory_ / "out.onnx", directory_ / "backup.onnx");  // of out.onnx.data, too
  fs::create_symlink("out.onnx", directory_ / "link.onnx");            // the same model
  for (const float x : {7.0F, 9.0F}) {
    write_trained(model, {{"a", float_tensor({x, 8})}}, {}, directory_ / "out.onnx");
    EXPECT_EQ(value(read_onnx(directory_ / "out.onnx"), "a"), (std::vector<double>{x, 8}));
    EXPECT_EQ(value(read_onnx(directory_ / "backup.onnx"), "a"), (std::vector<double>{5, 6}));
  }
  EXPECT_TRUE(fs::exists(directory_ / "out.onnx.1.data"));
  EXPECT_FALSE(fs::exists(directory_ / "out.onnx.2.data"));
}

TEST_F(ExternalWriterTest, ACopyOfTheInputIsReplacedWithoutTheDataOfBoth) {
  put_file(directory_ / "in.data", data_);
  const OnnxModel model = save_external({external("a", "in.data", "4")});
  fs::copy_file(directory_ / "in.onnx", directory_ / "copy.onnx");
  write_trained(model, {{"a", float_tensor({5, 6})}}, {}, directory_ / "copy.onnx",
                {.overwrite_input = true});
  EXPECT_EQ(get_file(directory_ / "in.data"), data_);
  EXPECT_EQ(value(read_onnx(directory_ / "in.onnx"), "a"), (std::vector<double>{1, 2}));
  EXPECT_EQ(value(read_onnx(directory_ / "copy.onnx"), "a"), (std::vector<double>{5, 6}));
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
  TrainedValues values;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    values["w" + std::to_string(i)] = [i] {
      HostTensor value({DType::kFloat32, Shape{kElements}});
      std::ranges::fill(value.span<float>(), static_cast<float>(i + 1));
      return value;
    };
  }
  // A file of 128 MiB is itself in memory, too, if the tensors are in it.
  for (const bool external : {true, false}) {
    builder.write(directory_ / "in.onnx", external ? 0 : std::size_t{1} << 30);
    const OnnxModel model = read_onnx(directory_ / "in.onnx");
    test::forget_peak_memory();
    const std::int64_t before = test::kibibytes("VmRSS");
    write_trained(model, values, {}, directory_ / "out.onnx");
    const std::int64_t file = external ? 0 : kTensors * kElements * 4 / 1024;
    // AddressSanitizer keeps what is freed for a while.
    if (!test::keeps_freed_memory()) EXPECT_LT(test::kibibytes("VmHWM") - before, file + 32 * 1024);
    const OnnxModel written = read_onnx(directory_ / "out.onnx");
    for (std::int64_t i = 0; i < kTensors; ++i) {
      const HostTensor& value = written.find_initializer("w" + std::to_string(i))->value;
      EXPECT_EQ(value.span<float>().front(), static_cast<float>(i + 1));
      EXPECT_EQ(value.span<float>().back(), static_cast<float>(i + 1));
    }
  }
}

// The official implementation reads what is written here, and finds the same numbers in it.
TEST_F(ExternalWriterTest, TheOnnxPackageReadsTheResult) {
  const char* python = std::getenv("PIPETRAIN_ORACLE_PYTHON");
  if (!python) GTEST_SKIP() << "PIPETRAIN_ORACLE_PYTHON names no Python with the onnx package";
  put_file(directory_ / "in.data", data_);
  ModelParts parts = all_encodings();
  parts.initializers.push_back(external("external", "in.data", "4"));
  put_file(directory_ / "whole.data", bytes_of({1, 2}));
  parts.initializers.push_back(
      tensor_part("whole", {2}, 1, external_data({{"location", "whole.data"}})));
  const OnnxModel model = save(parts);
  TrainedValues values;
  for (const std::string& name : kEncodings) values[name] = float_tensor({-1.5F, 0.25F});
  for (const char* name : {"external", "whole"}) values[name] = float_tensor({-1.5F, 0.25F});
  ExportEdits edits;
  edits.added.push_back({"whole2", float_tensor({-1.5F, 0.25F}), "whole"});
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
assert len(names) == 13 and all(v == [-1.5, 0.25] for v in names.values()), names
assert model.graph.node[0].input[1] == "W2"
)");
  const std::string command =
      fmt::format("'{}' '{}' '{}'", python, (directory_ / "check.py").string(),
                  (directory_ / "out.onnx").string());
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace pipetrain::written_models
