#include "data/loading/open_data.h"

#include <gtest/gtest.h>

#include "data/formats/table_encoding.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;
using OpenData = DataFiles;

DataSpec image(Shape shape, std::int64_t count) {
  LabelSpec label;
  label.classes = count;
  return {{{"image", DType::kFloat32, std::move(shape), -1}}, label};
}

DataOptions at(const std::string& path) {
  DataOptions out;
  out.path = path;
  return out;
}

// Rows "i, 2 i, i mod 3".
std::string table(int rows) {
  std::string out;
  for (int i = 0; i < rows; ++i) out += fmt::format("{},{},{}\n", i, 2 * i, i % 3);
  return out;
}

TEST_F(OpenData, TableIntoAnImageModel) {
  const OpenedData got = open_data(at(write("t.csv", table(6))), image({1, 2, 1}, 3));
  EXPECT_EQ(got.train->size(), 6u);
  EXPECT_EQ(values(*got.train, 0, {5}), (Doubles{5, 10}));
  EXPECT_EQ(values(*got.train, 1), (Doubles{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(got.validation, nullptr);
  expect_contains(got.description, "CSV, without a header");
  expect_contains(got.description, "reshaped, not scaled");
  expect_contains(got.description, "classes 0..2");
  expect_contains(got.description, "6 training samples");
}

TEST_F(OpenData, DescribesArraysWithoutRows) {
  RawData raw{"x.npz", "NumPy archive (npz)", {}, {}, {}};
  raw.train.columns.push_back({"x", HostTensor({DType::kFloat32, {0, 1000000000}}), "x.npz"});
  expect_contains(describe(raw),
                  "0 samples of \"x\" float32 (1000000000), values of the first from 0 to 0");
}

TEST_F(OpenData, RecognisesEveryFormat) {
  const auto format = [&](const std::string& path) { return read_source(path, {}).format; };
  EXPECT_EQ(format(write("a.tsv", "1\t2\n")), "CSV, without a header");
  EXPECT_EQ(format(write("a.txt", "text")), "text, one token per byte");
  EXPECT_EQ(format(write("README", "text")), "text, one token per byte");
  const std::string row = "1, 2.5,-3e2\n";
  std::string wide = "1";
  for (int i = 0; i < 4000; ++i) wide += ",0";
  const std::vector<std::string> tables = {
      row, row + "4,5,6", "a,b,c\n" + row, "1.5;2;iris\n2;3;rose\n", wide, wide + "\n" + wide};
  for (const std::string& content : tables)
    EXPECT_EQ(format(write("stream", content)).substr(0, 3), "CSV") << content;
  const std::vector<std::string> texts = {
      "Yes, it is.\nNo, you are.\n", "1\n2\n",       "a,b,c\n",
      "12,34\nto be, or not\n",      "1,2\n3,4,5\n", "1 2\n3 4\n"};
  for (const std::string& content : texts)
    EXPECT_EQ(format(write("stream", content)), "text, one token per byte") << content;
  EXPECT_EQ(format(write("b.bin", "abcdef")), "headerless tokens, uint16");
  EXPECT_EQ(format(write("images", big(0x801, 4) + big(2, 4) + "ab")), "MNIST IDX");
  EXPECT_EQ(format(write("data_batch_1.bin", std::string(3073, 'a'))), "CIFAR-10 binary");
  const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1), }";
  EXPECT_EQ(format(write("odd_name", "\x93NUMPY" + std::string("\x01\x00", 2) +
                                         little(header.size(), 2) + header + "a")),
            "NumPy array (npy)");
  EXPECT_EQ(format(write("dir/train.csv", "1,2\n").substr(0, path("dir").size())),
            "CSV, without a header");
}

TEST_F(OpenData, DirectoriesOfArraysAndOfTexts) {
  const auto npy = [](const std::string& data) {
    const std::string header =
        fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", data.size());
    return "\x93NUMPY" + std::string("\x01\x00", 2) + little(header.size(), 2) + header + data;
  };
  write("arrays/x_train.npy", npy("abc"));
  write("arrays/y_train.npy", npy(std::string("\0\1\1", 3)));
  write("arrays/x_test.npy", npy("d"));
  write("arrays/y_test.npy", npy("\1"));
  const OpenedData arrays = open_data(at(path("arrays")), image({1}, 2));
  EXPECT_EQ(arrays.train->size(), 3u);
  EXPECT_EQ(arrays.validation->size(), 1u);

  write("texts/LICENSE-1", "one");
  write("texts/LICENSE-2", "two!");
  std::filesystem::create_symlink("LICENSE-2", path("texts/LICENSE"));
  const RawData texts = read_source(path("texts"), {});
  EXPECT_EQ(texts.format, "text, one token per byte");
  EXPECT_EQ(texts.train.shards->at(0).tokens(), 7u);  // the link brings nothing new
}

TEST_F(OpenData, LinksWhoseNamesCountAreRead) {
  const auto link = [&](const std::string& target, const std::string& name) {
    std::filesystem::create_symlink(target, path(name));
  };
  const auto rows = [](const RawSplit& split) {
    return split.empty() ? 0 : split.columns[0].rows();
  };
  write("a/train-v3.csv", table(3));
  write("a/holdout.csv", table(2));
  link("train-v3.csv", "a/train.csv");
  link("holdout.csv", "a/test.csv");
  const RawData tables = read_source(path("a"), {});
  EXPECT_EQ(rows(tables.train), 3u);
  EXPECT_EQ(rows(tables.validation), 2u);
  const std::string line = "{\"x\":[1],\"y\":0}\n";
  write("b/data.jsonl", line + line + line);
  write("b/sample.jsonl", line + line);
  link("data.jsonl", "b/train.jsonl");
  link("sample.jsonl", "b/val.jsonl");
  const RawData parts = read_source(path("b"), {});
  EXPECT_EQ(rows(parts.train), 3u);
  EXPECT_EQ(rows(parts.validation), 2u);
  // Neighbours that are not listed themselves.
  write("c/a.tar", "");
  write("c/b.bin", "");
  link("b.bin", "c/b.tar");
  using Names = std::vector<std::string>;
  const auto is_tar = [](const std::string& name) { return name.ends_with(".tar"); };
  EXPECT_EQ(list_files(path("c"), is_tar), (Names{path("c/a.tar"), path("c/b.tar")}));
  EXPECT_EQ(list_files(path("c/*.tar")), (Names{path("c/a.tar"), path("c/b.tar")}));
  EXPECT_EQ(list_files(path("c")), (Names{path("c/a.tar"), path("c/b.bin")}));
}

TEST_F(OpenData, BadCellsOfATableCanBeLeftOut) {
  DataOptions options = at(write("t.csv", "1,2,0\n1,oops,1\n5,6,1\n"));
  expect_contains(data_error([&] { open_data(options, image({2}, 2)); }), "line 2, column 2");
  options.bind.on_bad_sample = BadSample::kSkip;
  const OpenedData got = open_data(options, image({2}, 2));
  EXPECT_EQ(values(*got.train, 0), (Doubles{1, 2, 5, 6}));
  expect_contains(got.description, "t.csv line 2");
}

TEST_F(OpenData, RowsWithoutALabelCanBeLeftOut) {
  DataOptions options = at(write("t.csv", "x,label\n1,cat\n2,\n3,dog\n"));
  expect_contains(data_error([&] { open_data(options, image({1}, 2)); }), "line 3 has no label");
  options.bind.on_bad_sample = BadSample::kSkip;
  options.validation_path = write("v.csv", "x,label\n4,dog\n5,\n");
  const OpenedData got = open_data(options, image({1}, 2));
  EXPECT_EQ(values(*got.train, 0), (Doubles{1, 3}));
  EXPECT_EQ(values(*got.train, 1), (Doubles{0, 1}));
  EXPECT_EQ(values(*got.validation, 1), Doubles{1});
  EXPECT_EQ(got.class_names, (std::vector<std::string>{"cat", "dog"}));
  expect_contains(got.warnings.at(0), "1 bad sample skipped");
}

// The numbers "1" and "2" of the validation data, whose third class is "3+" in the training data.
TEST_F(OpenData, ARowWithoutALabelLeavesTheOthersTheirClasses) {
  DataOptions options = at(write("t.csv", "x,label\n3,3+\n1,1\n2,2\n"));
  options.bind.on_bad_sample = BadSample::kSkip;
  for (const char* gap : {"", "6,\n"}) {
    options.validation_path = write("v.csv", fmt::format("x,label\n4,2\n{}5,1\n", gap));
    const OpenedData got = open_data(options, image({1}, 3));
    EXPECT_EQ(values(*got.validation, 1), (Doubles{1, 0})) << gap;
  }
}

TEST_F(OpenData, LimitsAndSplitsCountGoodSamples) {
  std::string text;
  for (int i = 0; i < 99; ++i) text += fmt::format("{},{},{}\n", i, i % 2 ? "oops" : "1", i % 3);
  DataOptions options = at(write("t.csv", text));
  options.bind.on_bad_sample = BadSample::kSkip;
  options.limit = 40;
  EXPECT_EQ(open_data(options, image({2}, 3)).train->size(), 40u);
  options.validation_rows = 10;
  const OpenedData got = open_data(options, image({2}, 3));
  EXPECT_EQ(got.train->size(), 30u);
  EXPECT_EQ(got.validation->size(), 10u);
}

TEST_F(OpenData, ColumnsAreNotFittedToValidationSamples) {
  // A row for each column, which only this row makes vary, and a bad one.
  constexpr int kRows = 20;
  std::string text;
  for (int row = 0; row <= kRows; ++row) {
    for (int i = 0; i < kRows; ++i) text += row == 3 && i == 0 ? "oops," : i == row ? "1," : "0,";
    text += fmt::format("{}\n", row % 2);
  }
  DataOptions options = at(write("t.csv", text));
  options.bind.on_bad_sample = BadSample::kSkip;
  options.csv.scale = CsvOptions::Scale::kStandard;
  options.validation_split = 0.3;
  const OpenedData got = open_data(options, image({kRows}, 2));
  EXPECT_EQ(got.train->size() + got.validation->size(), std::size_t{kRows});
  const TableEncoding encoding = TableEncoding::parse(got.encoding);
  for (std::size_t sample = 0; sample < got.validation->size(); ++sample) {
    const std::size_t row = got.validation->place_of(sample);
    if (row < kRows) EXPECT_EQ(encoding.columns[row].mean, 0) << row;
  }
}

TEST_F(OpenData, SaysWhatItCannotRead) {
  const auto error = [&](const std::string& path) {
    return data_error([&] { read_source(path, {}); });
  };
  expect_contains(error(path("absent.npz")), "no data file");
  expect_contains(error("/dev/zero"), "a device");
  expect_contains(error(write("empty", "")), "empty");
  expect_contains(error(write("odd", std::string("\x7f\0\1ELF", 6))), "unknown format");
  expect_contains(error(write("a.png", std::string("\x89PNG\0", 5))), "unknown format");
  write("folder/cats/1.jpg", "x");
  expect_contains(error(path("folder")), "cannot decode");
  write("other/a.xyz", std::string("\0", 1));
  expect_contains(error(path("other")), "unknown format");
  DataOptions options;
  options.format = "csv";
  const std::string long_name(300, 'a');
  expect_contains(data_error([&] { read_source(long_name, options); }), "File name too long");
  options.format = "hdf5";
  expect_contains(data_error([&] { read_source("x", options); }, ErrorKind::kUsage),
                  "`format` hdf5");
}

TEST_F(OpenData, ValidationByFractionRowsFileOrTheDataThemselves) {
  const std::string file = write("t.csv", table(20));
  const DataSpec spec = image({2}, 3);
  DataOptions options = at(file);
  options.validation_split = 0.25;
  const OpenedData split = open_data(options, spec);
  EXPECT_EQ(split.train->size(), 15u);
  EXPECT_EQ(split.validation->size(), 5u);
  options.validation_split = 0;
  options.validation_rows = 3;
  options.limit = 10;
  EXPECT_EQ(open_data(options, spec).train->size(), 7u);
  options = at(file);
  options.validation_path = write("v.csv", table(4));
  EXPECT_EQ(open_data(options, spec).validation->size(), 4u);
  options.validation_split = 0.5;
  EXPECT_FALSE(data_error([&] { open_data(options, spec); }, ErrorKind::kUsage).empty());
  options = at(file);
  options.validation_split = 1.5;
  EXPECT_FALSE(data_error([&] { open_data(options, spec); }, ErrorKind::kUsage).empty());

  write("both/train.csv", table(6));
  write("both/test.csv", table(3));
  EXPECT_EQ(open_data(at(path("both")), spec).validation->size(), 3u);
  write("both/test.csv", "1,2\n");  // a competition's test part: no labels
  const OpenedData without = open_data(at(path("both")), spec);
  EXPECT_EQ(without.validation, nullptr);
  expect_contains(without.description, "no validation on the validation part");
}

TEST_F(OpenData, ErrorsInValidationDataSaySo) {
  DataOptions options = at(write("t.csv", table(6)));
  options.validation_path = write("v.csv", "1,2,9\n");
  try {
    open_data(options, image({2}, 3));
    FAIL() << "no error";
  } catch (const Error& error) {
    expect_contains(error.what(), "label 9 out of range 0..2");
    expect_contains(error.what(), "while reading the validation data");
  }
}

TEST_F(OpenData, LongerRowsOfValidationDataSayWhatToDo) {
  DataOptions options = at(write("t.jsonl", "{\"ids\":[1,2],\"y\":0}\n{\"ids\":[3],\"y\":1}\n"));
  options.validation_path =
      write("v.jsonl", "{\"ids\":[1,2,3,4],\"y\":0}\n{\"ids\":[3],\"y\":1}\n");
  DataSpec spec = image({}, 2);
  spec.inputs[0] = ModelInput{"ids", DType::kInt64, {2}, 10};
  expect_contains(data_error([&] { open_data(options, spec); }), "`text-length` 4 pads all rows");
  options.text.length = 4;
  spec.inputs[0].sample_shape = {4};
  EXPECT_EQ(values(*open_data(options, spec).validation, 0), (Doubles{1, 2, 3, 4, 3, 0, 0, 0}));
}

TEST_F(OpenData, Synthetic) {
  DataOptions options;
  options.synthetic_samples = 50;
  options.validation_split = 0.1;
  const OpenedData got = open_data(options, image({3, 4, 4}, 10));
  EXPECT_TRUE(got.synthetic);
  EXPECT_EQ(got.train->size(), 45u);
  EXPECT_EQ(got.validation->size(), 5u);
  EXPECT_EQ(open_data({}, image({3, 4, 4}, 10)).train->size(), 6400u);
}

TEST_F(OpenData, DescribesArraysAndTokens) {
  const std::string table_text = describe(read_source(write("t.csv", "a,b,y\n1,5,0\n"), {}));
  expect_contains(table_text, "1 samples of \"x\" float32 (2), values of the first from 1 to 5");
  expect_contains(table_text, "(labels)");
  expect_contains(describe(read_source(write("t.txt", "aba"), {})),
                  "3 tokens in 1 file, the largest id is 98");
}

}  // namespace
}  // namespace pipetrain
