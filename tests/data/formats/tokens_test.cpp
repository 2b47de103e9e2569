#include <gtest/gtest.h>

#include "data/binding/bind.h"
#include "data/loading/open_data.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;
using Tokens = DataFiles;

std::string llmc(std::uint32_t magic, std::uint32_t version, std::uint32_t count,
                 const std::string& tokens) {
  std::string out = little(magic, 4) + little(version, 4) + little(count, 4);
  out.resize(1024);
  return out + tokens;
}

std::string ids(int size, std::vector<std::uint32_t> tokens) {
  std::string out;
  for (const std::uint32_t token : tokens) out += little(token, size);
  return out;
}

// A language model over `rows` tokens with windows of `length`.
DataSpec language_model(std::int64_t length, std::int64_t rows) {
  LabelSpec label;
  label.sample_shape = Shape{length};
  label.classes = rows;
  label.shifted_input = true;
  return {{{"input_ids", DType::kInt64, Shape{length}, rows}}, label};
}

std::shared_ptr<const Dataset> bind(const RawData& raw, const DataSpec& spec) {
  return bind_data(raw.train, spec, {}).dataset;
}

TEST_F(Tokens, WindowsAndTheTokensThatFollow) {
  const RawData raw =
      read_tokens(write("t.bin", llmc(20240520, 1, 8, ids(2, {10, 11, 12, 13, 14, 15, 16, 50256}))),
                  DType::kUndefined);
  const auto data = bind(raw, language_model(3, 50257));
  ASSERT_EQ(data->size(), 2u);
  EXPECT_EQ(values(*data, 0), (Doubles{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(values(*data, 1), (Doubles{11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(data->columns()[1].name, "labels");
}

TEST_F(Tokens, FourByteFilesAndShards) {
  write("a_000.bin", llmc(20240801, 7, 4, ids(4, {1, 2, 3, 100000})));
  write("a_001.bin", llmc(20240801, 7, 3, ids(4, {5, 6, 7})));
  write("a_val.bin", llmc(20240801, 7, 3, ids(4, {8, 9, 8})));
  for (const std::string& place : {directory(), path("a_*.bin")}) {
    const RawData raw = read_tokens(place, DType::kUndefined);
    const auto data = bind(raw, language_model(2, 128256));
    ASSERT_EQ(data->size(), 2u);  // 3 tokens of the first shard, 3 of the second
    EXPECT_EQ(values(*data, 0), (Doubles{1, 2, 5, 6}));
    EXPECT_EQ(values(*data, 1), (Doubles{2, 3, 6, 7}));
    ASSERT_TRUE(raw.validation.shards);
    EXPECT_EQ(raw.validation.shards->front().tokens(), 3u);
  }
}

TEST_F(Tokens, HeaderlessFilesAreTwoOrFourBytesWide) {
  std::vector<std::uint32_t> some;
  for (std::uint32_t i = 0; i < 100; ++i) some.push_back(1000 + 37 * i);
  const std::string narrow = write("n.bin", ids(2, some)), wide = write("w.bin", ids(4, some));
  EXPECT_EQ(read_tokens(narrow, DType::kUndefined).train.shards->front().dtype, DType::kUint16);
  EXPECT_EQ(read_tokens(wide, DType::kUndefined).train.shards->front().dtype, DType::kUint32);
  EXPECT_EQ(read_tokens(wide, DType::kUint16).train.shards->front().tokens(), 200u);
  EXPECT_EQ(read_tokens(wide, DType::kUint32).train.shards->front().token(1), 1037u);
}

TEST_F(Tokens, FoldersOfCompressedFiles) {
  // gzip of "1,2\n3,4\n", made by Python's gzip.compress(…, mtime=0)
  const std::string packed = from_hex("1f8b080000000000020333d431e232d631e1020047936caf08000000");
  write("tokens/train.bin.gz", packed);
  write("tokens/val.bin.gz", packed);
  const RawData tokens = read_source(path("tokens"), {});
  EXPECT_EQ(tokens.train.shards->at(0).tokens(), 4u);
  EXPECT_EQ(tokens.validation.shards->at(0).tokens(), 4u);
  write("texts/a.txt.gz", packed);
  EXPECT_EQ(read_source(path("texts"), {}).train.shards->at(0).content.text(), "1,2\n3,4\n");
}

TEST_F(Tokens, WrongFilesAreErrors) {
  const auto error = [&](const std::string& content) {
    const std::string file = write("t.bin", content);
    return data_error([&] { read_tokens(file, DType::kUndefined); });
  };
  expect_contains(error(llmc(20240520, 1, 8, ids(2, {1, 2}))),
                  "8 tokens need 1040 bytes, it has 1028");
  expect_contains(error(llmc(20240520, 2, 1, ids(2, {1}))), "version 2");
  expect_contains(error(llmc(20240801, 1, 1, ids(4, {1}))), "version 1");
  expect_contains(error(llmc(20240520, 1, 0xffffffff, "")), "tokens need 8589935614 bytes");
  expect_contains(error("abc"), "`token-dtype`");
  expect_contains(error(""), "`token-dtype`");
  expect_contains(data_error([&] { read_tokens(path("none*.bin"), DType::kUndefined); }),
                  "no file matches");
}

TEST_F(Tokens, IdsAreCheckedAgainstTheEmbedding) {
  const std::string file = write("t.bin", llmc(20240520, 1, 4, ids(2, {1, 2, 300, 4})));
  const RawData raw = read_tokens(file, DType::kUndefined);
  EXPECT_EQ(data_error([&] { bind(raw, language_model(2, 256)); }),
            "token 300 out of range 0..255, " + file + " token 2");
  EXPECT_EQ(bind(raw, language_model(2, 301))->size(), 1u);
}

TEST_F(Tokens, TooShortOrNotWanted) {
  const RawData raw =
      read_tokens(write("t.bin", llmc(20240520, 1, 3, ids(2, {1, 2, 3}))), DType::kUndefined);
  expect_contains(data_error([&] { bind(raw, language_model(3, 10)); }), "3 tokens, too few");
  DataSpec image{{{"x", DType::kFloat32, Shape{1, 8, 8}, -1}}, LabelSpec{}};
  expect_contains(data_error([&] { bind(raw, image); }), "no integer input");
  DataSpec classify = language_model(2, 10);
  classify.label->shifted_input = false;
  expect_contains(data_error([&] { bind(raw, classify); }), "without labels");
}

TEST_F(Tokens, MasksAndPositionsAreFilled) {
  const RawData raw = read_text(write("t.txt", "abcde"));
  DataSpec spec = language_model(2, 256);
  spec.inputs.push_back({"attention_mask", DType::kFloat32, Shape{2}, -1});
  spec.inputs.push_back({"token_type_ids", DType::kInt64, Shape{2}, 2});
  spec.inputs.push_back({"position_ids", DType::kInt32, Shape{2}, 2});
  const auto data = bind(raw, spec);
  EXPECT_EQ(values(*data, 0), (Doubles{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(values(*data, 1), (Doubles{1, 1, 1, 1}));
  EXPECT_EQ(values(*data, 2), (Doubles{0, 0, 0, 0}));
  EXPECT_EQ(values(*data, 3), (Doubles{0, 1, 0, 1}));
  EXPECT_EQ(values(*data, 4), (Doubles{'b', 'c', 'd', 'e'}));
  spec.inputs.back().upper_bound = 1;
  expect_contains(data_error([&] { bind(raw, spec); }, ErrorKind::kModel),
                  "2 tokens are too many: \"position_ids\" has 1 positions");
}

TEST_F(Tokens, TextOfSeveralFilesOrEmpty) {
  write("a.txt", "ab");
  write("b.txt", "");
  write("c.txt", "cd");
  const auto text_of = [](const RawSplit& split) {
    return std::string(split.shards->at(0).content.text());
  };
  EXPECT_EQ(text_of(read_text(directory()).train), "abcd");
  write("test.txt", "ef");  // may be a text like the others
  EXPECT_EQ(text_of(read_text(directory()).train), "abcdef");
  write("wiki.train.txt", "gh");
  const RawData parts = read_text(directory());
  EXPECT_EQ(text_of(parts.train), "abcdgh");
  ASSERT_TRUE(parts.validation.shards);
  EXPECT_EQ(parts.validation.shards->at(0).file, path("test.txt"));
  const std::string empty = path("b.txt");
  expect_contains(data_error([&] { read_text(empty); }), "empty");
}

}  // namespace
}  // namespace pipetrain
