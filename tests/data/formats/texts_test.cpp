#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "data/binding/bind.h"
#include "data/rows/ragged_rows.h"
#include "data/rows/readers.h"
#include "support/data_files.h"
#include "support/sentence_piece_model.h"
#include "support/small_tokenizers.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

class Texts : public DataFiles {
 protected:
  TextOptions bytes() const {
    TextOptions out;
    out.tokenizer = write("bpe.json", kBytePairs);
    return out;
  }
  TextOptions words() const {
    TextOptions out;
    out.tokenizer = write("words.json", kWordPieces);
    return out;
  }
};

DataSpec next_tokens(std::int64_t length) {
  LabelSpec label;
  label.sample_shape = Shape{length};
  label.classes = 22;
  label.shifted_input = true;
  return {{{"input_ids", DType::kInt64, Shape{length}, 22}}, label};
}

DataSpec classifier(std::int64_t length) {
  LabelSpec label;
  label.classes = 2;
  return {{{"input_ids", DType::kInt64, Shape{length}, 13},
           {"input_mask", DType::kFloat32, Shape{length}},
           {"token_type_ids", DType::kInt64, Shape{length}, 2}},
          label};
}

TEST_F(Texts, PackedWithAnEndAfterEach) {
  const std::string file =
      write("t.jsonl", "{\"text\": \"ab abc\"}\n{\"text\": \"12\", \"id\": 3}\n");
  const RawData raw = read_texts(file, "jsonl", bytes(), {});
  const auto bound = bind_data(raw.train, next_tokens(2), {});
  EXPECT_EQ(values(*bound.dataset, 0), (Doubles{6, 4, 7, 0}));  // 6 4 7 0 16 0
  EXPECT_EQ(values(*bound.dataset, 1), (Doubles{4, 7, 0, 16}));
}

TEST_F(Texts, PairsArePackedWhole) {
  const std::string file = write("t.csv", "a,b\nab,12\nabc,!\n");
  const auto packed = [&](TextOptions options) {
    options.column = "a";
    options.pair = "b";
    options.layout = TextOptions::Layout::kPack;
    const TokenShard shard = read_texts(file, "csv", options, {}).train.shards->at(0);
    std::vector<std::uint64_t> out;
    for (std::size_t i = 0; i < shard.tokens(); ++i) out.push_back(shard.token(i));
    return out;
  };
  EXPECT_EQ(packed(bytes()), (std::vector<std::uint64_t>{6, 16, 0, 7, 18, 0}));
  // [CLS] a [SEP] b [SEP]
  EXPECT_EQ(packed(words()), (std::vector<std::uint64_t>{2, 1, 3, 1, 3, 2, 1, 3, 9, 3}));
}

TEST_F(Texts, PlainFilesAreOneTextOrLines) {
  const std::string file = write("t.txt", "ab\n\nab\r\n");
  TextOptions options = bytes();
  EXPECT_EQ(read_texts(file, "text", options, {}).train.shards->at(0).tokens(), 6u);  // \r is none
  options.document = TextOptions::Document::kLine;
  EXPECT_EQ(read_texts(file, "text", options, {}).train.shards->at(0).tokens(), 4u);  // 6 0 6 0
}

TEST_F(Texts, AFolderHasTwoPartsIfOneFileIsForTraining) {
  write("d/test.txt", "ab");
  write("d/notes.txt", "ab");
  EXPECT_TRUE(read_texts(path("d"), "text", bytes(), {}).validation.empty());
  write("d/train.txt", "ab");
  const RawData parts = read_texts(path("d"), "text", bytes(), {});
  EXPECT_EQ(parts.train.shards->at(0).tokens(), 4u);  // 6 0 6 0, of two files
  EXPECT_EQ(parts.validation.shards->at(0).tokens(), 2u);
  const auto bound = bind_data(parts.train, next_tokens(3), {});
  EXPECT_EQ(values(*bound.dataset, 0), (Doubles{6, 0, 6}));
  EXPECT_EQ(values(*bound.dataset, 1), (Doubles{0, 6, 0}));
}

TEST_F(Texts, LabelledFoldersPreferValidationToTests) {
  const auto rows = [](int count) {
    std::string out;
    for (int i = 0; i < count; ++i)
      out += fmt::format("{{\"text\": \"the\", \"label\": {}}}\n", i % 2);
    return out;
  };
  write("d/train.jsonl", rows(4));
  write("d/validation.jsonl", rows(3));
  write("d/test.jsonl", rows(2));
  const RawData raw = read_texts(path("d"), "jsonl", words(), {});
  EXPECT_EQ(raw.train.columns[0].rows(), 4u);
  EXPECT_EQ(raw.validation.columns[0].rows(), 3u);
  EXPECT_EQ(raw.notes[0], "of its validation and test parts, the validation part is used");
  write("e/train.jsonl", rows(4));
  write("e/test.jsonl", rows(2));
  EXPECT_EQ(read_texts(path("e"), "jsonl", words(), {}).validation.columns[0].rows(), 2u);
}

TEST_F(Texts, OtherFilesOfAFolderAreNotRead) {
  write("j/README.md", "# texts\n");
  write("j/train.jsonl.gz", "{\"text\": \"ab\"}\n");  // not compressed after all
  EXPECT_TRUE(has_texts(path("j"), "jsonl"));
  EXPECT_EQ(read_texts(path("j"), "jsonl", bytes(), {}).train.shards->at(0).tokens(), 2u);  // 6 0
  write("c/sample_submission.csv", "id,label\n1,0\n");
  write("c/train.csv", "text,label\nthe un,1\nthe,0\n");
  write("c/test.csv", "text,label\nun,1\n");
  const RawData raw = read_texts(path("c"), "csv", words(), {});
  EXPECT_EQ(raw.train.columns[0].rows(), 2u);
  EXPECT_EQ(raw.validation.columns[0].rows(), 1u);
  write("s/1.csv", "text\nab\n");
  write("s/2.CSV", "text\nab\n");
  write("s/notes", "");
  EXPECT_EQ(read_texts(path("s"), "csv", bytes(), {}).train.shards->at(0).tokens(), 4u);
  expect_contains(data_error([&] { has_texts(path("c"), "jsonl"); }), "has no *.jsonl");
}

TEST_F(Texts, PaddedWithIgnoredLabels) {
  const std::string file = write("t.jsonl", "{\"text\": \"ab abc\"}\n{\"text\": \"12\"}\n");
  TextOptions options = bytes();
  options.layout = TextOptions::Layout::kPad;
  options.model_length = 4;
  const auto bound = bind_data(read_texts(file, "jsonl", options, {}).train, next_tokens(4), {});
  EXPECT_EQ(values(*bound.dataset, 0), (Doubles{6, 4, 7, 0, 16, 0, 0, 0}));
  EXPECT_EQ(values(*bound.dataset, 1), (Doubles{4, 7, 0, -100, 0, -100, -100, -100}));
}

TEST_F(Texts, LabelsMakeRows) {
  const std::string file = write("t.jsonl", R"({"sentence": "the un", "label": "no"}
{"sentence": "unaffable", "label": "yes"}
)");
  const RawData raw = read_texts(file, "jsonl", words(), {});
  const auto bound = bind_data(raw.train, classifier(5), {});
  EXPECT_EQ(values(*bound.dataset, 0), (Doubles{2, 8, 5, 3, 0, 2, 5, 6, 7, 3}));
  EXPECT_EQ(values(*bound.dataset, 1), (Doubles{1, 1, 1, 1, 0, 1, 1, 1, 1, 1}));  // not divided
  EXPECT_EQ(values(*bound.dataset, 2), Doubles(10, 0));
  EXPECT_EQ(values(*bound.dataset, 3), (Doubles{0, 1}));
  EXPECT_EQ(bound.class_names, (std::vector<std::string>{"no", "yes"}));
}

TEST_F(Texts, OneLongTextDoesNotFillTheMemory) {
  std::string content = "text,label\n";
  for (int i = 0; i < 70000; ++i) content += "the ";
  content += ",1\n";
  for (int i = 0; i < 1100; ++i) content += "un,0\n";
  TextOptions options = words();
  const std::string file = write("t.csv", content);
  expect_contains(data_error([&] { read_texts(file, "csv", options, {}); }),
                  "up to 70002 tokens; cut them to so many tokens with `text-length` N");
  options.length = 8;
  EXPECT_EQ(read_texts(file, "csv", options, {}).train.columns[0].rows(), 1101u);
}

TEST_F(Texts, EveryTextNeedsItsLabel) {
  const auto refused = [&](const std::string& name, const std::string& content) {
    return data_error(
        [&] { read_texts(write(name, content), name.substr(name.find('.') + 1), words(), {}); });
  };
  expect_contains(refused("t.csv", "text,label\nthe,a\nun,\n"), "line 3 has no label");
  expect_contains(refused("t.jsonl", "{\"text\":\"the\",\"label\":\"\"}\n"), "line 1 has no label");
  CsvOptions skip;
  skip.bad_cells_as_nan = true;
  for (const char* labels : {"b,,a", "1,,0"}) {
    const std::string label(labels);
    const std::string file = write(
        "s.csv", "text,label\nthe," + label.substr(0, 1) + "\nun,\nthe," + label.substr(3) + "\n");
    const Doubles got =
        read_texts(file, "csv", words(), skip).train.columns.back().values.to_doubles();
    EXPECT_TRUE(got.size() == 3 && got[0] == 1 && std::isnan(got[1]) && got[2] == 0) << labels;
  }
  const RawData large =
      read_texts(write("t.jsonl", "{\"text\":\"the\",\"label\":18446744073709551615}\n"), "jsonl",
                 words(), {});
  EXPECT_EQ(large.train.columns.back().values.to_doubles(), Doubles{0x1p64});
}

TEST_F(Texts, SomeWordsOfLabelsMayBeNumbers) {
  const std::string file = write("t.csv", "text,label\nthe,3+\nun,1\nthe,2\nun,3+\n");
  const RawColumn labels = read_texts(file, "csv", words(), {}).train.columns.back();
  EXPECT_EQ(labels.class_names, (std::vector<std::string>{"1", "2", "3+"}));
  EXPECT_EQ(labels.values.to_int64s(), (std::vector<std::int64_t>{2, 0, 1, 2}));
  const std::string numbers = write("n.csv", "text,label\nthe,1\nun,3+\n");
  expect_contains(data_error([&] { read_texts(numbers, "csv", words(), {}); }),
                  "line 3: \"label\" is a string in some rows");
  for (const char* first : {"NA", "\"1,234\""}) {
    const std::string other = write("o.csv", fmt::format("text,label\nthe,{}\nun,900\n", first));
    expect_contains(data_error([&] { read_texts(other, "csv", words(), {}); }),
                    "line 3: \"label\" is a string in some rows");
  }
}

TEST_F(Texts, TablesWithPairs) {
  const std::string file = write("t.csv", "a,b,label\n#the un,unaffable,1\n\"the, the\",!,0\n");
  TextOptions options = words();
  options.column = "a";
  options.pair = "b";
  const RawData raw = read_texts(file, "csv", options, {});
  const auto bound = bind_data(raw.train, classifier(9), {});
  EXPECT_EQ(values(*bound.dataset, 0, {0}), (Doubles{2, 1, 8, 5, 3, 5, 6, 7, 3}));  // # is unknown
  EXPECT_EQ(values(*bound.dataset, 2, {0}), (Doubles{0, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(values(*bound.dataset, 3), (Doubles{1, 0}));
}

/// A table as people have them: names that say little, a number for each row, labels at the end.
TEST_F(Texts, NamesOfColumnsAreKnownByWhatIsBelowThem) {
  TextOptions options = words();
  options.one_label_per_text = true;
  const auto read = [&](const std::string& content) {
    return read_texts(write("t.csv", content), "csv", options, {});
  };
  const RawData raw = read("id,what they said,mood\n1,the un,good\n2,unaffable,bad\n");
  const auto bound = bind_data(raw.train, classifier(5), {});
  EXPECT_EQ(values(*bound.dataset, 0), (Doubles{2, 8, 5, 3, 0, 2, 5, 6, 7, 3}));
  EXPECT_EQ(bound.class_names, (std::vector<std::string>{"bad", "good"}));
  // What they are called is kept for other data.
  expect_contains(raw.train.texts, "column=what they said");
  // Without numbers: the words of a label come again, its name does not.
  std::string rows = "said,mood\n";
  for (const char* mood : {"good", "bad", "bad", "good", "good", "bad", "bad", "good"})
    rows += std::string("the un,") + mood + "\n";
  EXPECT_EQ(read(rows).train.columns[0].values.to_int64s().size(), 8u * 4);
  // The same rows without a header.
  EXPECT_EQ(read(rows.substr(rows.find('\n') + 1)).train.columns[0].values.to_int64s().size(),
            8u * 4);
  // A next-token model has no labels at the end.
  options = bytes();
  expect_contains(read("id,review text,author\n1,ab,abc\n2,ab,abc\n").format,
                  "one stream of tokens");
}

/// A number in the first row may be the label, although columns without names have such numbers.
TEST_F(Texts, LabelsInTheFirstRowAreNoNamesOfColumns) {
  const auto labels = [&](const std::string& content, const std::string& column,
                          const std::string& label) {
    TextOptions options = words();
    options.column = column;
    CsvOptions table;
    table.label_column = label;
    return read_texts(write("t.tsv", content), "tsv", options, table)
        .train.columns.back()
        .values.to_doubles();
  };
  const std::string rows = "the un\t0\nunaffable\t1\nthe\t0\n";
  EXPECT_EQ(labels(rows, "0", ""), (Doubles{0, 1, 0}));
  EXPECT_EQ(labels("the\t1\nun\t0\n", "", "1"), (Doubles{1, 0}));
  // Names may be numbers: all places, or what can be none.
  EXPECT_EQ(labels("0\t1\n" + rows, "0", "1"), (Doubles{0, 1, 0}));
  EXPECT_EQ(labels("said\t2024\n" + rows, "", "2024"), (Doubles{0, 1, 0}));
}

/// What is predicted may have gaps in place of labels.
TEST_F(Texts, LabelsMayBeMissing) {
  TextOptions options = words();
  options.one_row_per_text = true;
  CsvOptions table;
  table.label_may_be_missing = true;
  const auto last = [&](const std::string& name, const std::string& content) {
    return read_texts(write(name, content), name.substr(2), options, table).train.columns.back();
  };
  for (const char* gap : {"", "NA", "?"}) {
    const std::string cell(gap);
    EXPECT_NE(last("t.csv", "text,label\nthe," + cell + "\nun," + cell + "\n").role,
              ColumnRole::kLabel);
    const RawColumn some = last("t.csv", "text,label\nthe," + cell + "\nun,3\n");
    EXPECT_EQ(some.role, ColumnRole::kLabel);
    EXPECT_TRUE(std::isnan(some.values.to_doubles()[0]));
    EXPECT_EQ(some.values.to_doubles()[1], 3);
  }
  const std::string null = "{\"text\":\"the\",\"label\":null}\n";
  EXPECT_NE(last("t.jsonl", null + null).role, ColumnRole::kLabel);
  for (const char* line : {"{\"text\":\"un\"}\n", "{\"text\":\"un\",\"label\":null}\n"}) {
    const Doubles some =
        last("t.jsonl", "{\"text\":\"the\",\"label\":2}\n" + std::string(line)).values.to_doubles();
    EXPECT_TRUE(some.size() == 2 && some[0] == 2 && std::isnan(some[1])) << line;
  }
}

TEST_F(Texts, LongTextsAreCut) {
  const std::string file = write("t.jsonl", "{\"text\": \"the un the un\", \"label\": 1}\n");
  TextOptions options = words();
  options.length = 4;
  const RawData raw = read_texts(file, "jsonl", options, {});
  EXPECT_EQ(raw.train.columns[0].values.to_int64s(), (std::vector<std::int64_t>{2, 8, 5, 3}));
  EXPECT_EQ(raw.notes.back(), "1 of 1 texts are cut to 4 tokens");
}

/// Texts of the validation part are as long as those for training, whoever sets that length.
TEST_F(Texts, TextsOfTheValidationPartAreCutLoudly) {
  write("d/train.csv", "text,label\nthe,1\nun,0\n");
  write("d/val.csv", "text,label\nthe un the,1\nthe,0\nthe un,0\n");
  TextOptions options = words();
  const RawData raw = read_texts(path("d"), "csv", options, {});  // [CLS] the [SEP]
  EXPECT_EQ(raw.validation.columns[0].values.to_int64s(),
            (std::vector<std::int64_t>{2, 8, 3, 2, 8, 3, 2, 8, 3}));
  EXPECT_TRUE(raw.warnings.empty());
  ASSERT_EQ(raw.validation_warnings.size(), 1u);
  expect_contains(raw.validation_warnings[0], "2 of 3 texts are cut to 3 tokens");
  expect_contains(raw.validation_warnings[0], "`text-length`");
  options.length = 3;
  EXPECT_TRUE(read_texts(path("d"), "csv", options, {}).validation_warnings.empty());
  options.length = 0;
  options.training_rows = 3;  // another file than that of the training
  const RawData other = read_texts(path("d/val.csv"), "csv", options, {});
  ASSERT_EQ(other.warnings.size(), 1u);
  expect_contains(other.warnings[0], "2 of 3 texts are cut to 3 tokens");
  // What a model remembers is not changed by that.
  EXPECT_EQ(other.train.texts, raw.train.texts);
}

TEST_F(Texts, SentencePieceModelsDoNotNameSpecialTokens) {
  TextOptions options;
  options.tokenizer = write("tokenizer.model", sentence_piece_model(1));
  const std::string file = write("t.csv", "text,label\nab,1\nb,0\n");
  const RawData raw = read_texts(file, "csv", options, {});
  ASSERT_EQ(raw.warnings.size(), 1u);
  expect_contains(raw.warnings[0], "no special tokens");
  EXPECT_TRUE(read_texts(file, "csv", words(), {}).warnings.empty());
}

TEST_F(Texts, Mistakes) {
  expect_contains(data_error([&] {
                    read_texts(write("t.csv", "id,left,right\n1,the,un\n2,un,the\n"), "csv",
                               words(), {});
                  }),
                  "several columns of words: id, left, right;");
  const auto read = [&](const std::string& content, TextOptions options) {
    const std::string file = write("t.jsonl", content);
    return data_error([&] { read_texts(file, "jsonl", options, {}); });
  };
  expect_contains(read("{\"x\": 1}\n", bytes()), "no column of texts");
  expect_contains(read("{\"p\": \"a\", \"q\": \"b\"}\n", bytes()), "several columns of words");
  expect_contains(read("{\"text\": \"a\"}\n{\"other\": \"b\"}\n", bytes()),
                  "line 2: \"text\" is missing");
  expect_contains(read("{\"text\": \"a\"\n", bytes()), "line 1: invalid JSON");
  TextOptions other = bytes();
  other.sha256 = std::string(64, '0');
  other.name = "mine.json";
  expect_contains(read("{\"text\": \"a\"}\n", other),
                  "is not the tokenizer that the model was trained with, \"mine.json\"");
  other = bytes();
  other.end_of_text = "<end>";
  expect_contains(read("{\"text\": \"a\"}\n", other), "no token \"<end>\"");
}

// Ids from elsewhere, in rows of several lengths.
TEST_F(Texts, AMaskIsMadeFromPadding) {
  const std::string file = write(
      "t.jsonl", "{\"input_ids\": [5, 6], \"label\": 1}\n{\"input_ids\": [7], \"label\": 0}\n");
  const auto bound = bind_data(read_jsonl(file).train, classifier(2), {});
  EXPECT_EQ(values(*bound.dataset, 1), (Doubles{1, 1, 1, 0}));
  DataSpec without = classifier(2);
  without.inputs.resize(1);
  EXPECT_TRUE(bind_data(read_jsonl(file).train, without, {}).warnings.empty());
}

TEST_F(Texts, TheMaskIsOfTheEncodersTokens) {
  const auto mask = [&](const std::string& first, const std::string& second) {
    const RawData raw = read_jsonl(write("t.jsonl", "{" + first + "}\n{" + second + "}\n"));
    const RawColumn& last = raw.train.columns.back();
    EXPECT_EQ(last.name, "attention_mask");
    return last.values.to_doubles();
  };
  EXPECT_EQ(mask(R"("decoder_input_ids": [1], "input_ids": [5, 6])",
                 R"("decoder_input_ids": [2, 3], "input_ids": [7])"),
            (Doubles{1, 1, 1, 0}));
  EXPECT_EQ(mask(R"("decoder_ids": [1], "ids": [5, 6])", R"("decoder_ids": [2, 3], "ids": [7])"),
            (Doubles{1, 1, 1, 0}));
  // What has one length is not padded, and a decoder may be alone.
  EXPECT_EQ(mask(R"("place": [8, 9], "ids": [5])", R"("place": [8, 9], "ids": [6, 7])"),
            (Doubles{1, 0, 1, 1}));
  EXPECT_EQ(mask(R"("decoder_ids": [5], "y": 0)", R"("decoder_ids": [6, 7], "y": 1)"),
            (Doubles{1, 0, 1, 1}));
  // An encoder whose rows have one length needs none.
  const RawData same =
      read_jsonl(write("s.jsonl",
                       "{\"decoder_input_ids\": [1], \"input_ids\": [5, 6]}\n"
                       "{\"decoder_input_ids\": [2, 3], \"input_ids\": [7, 8]}\n"));
  EXPECT_EQ(same.train.columns.size(), 2u);
}

TEST_F(Texts, LabelsArePaddedWithWhatTheLossIgnores) {
  const std::string rows = write("t.jsonl",
                                 "{\"input_ids\": [5, 6], \"labels\": [1, 2]}\n"
                                 "{\"input_ids\": [7], \"labels\": [3]}\n");
  EXPECT_EQ(read_jsonl(rows).train.columns[1].values.to_doubles(), (Doubles{1, 2, 3, -100}));
  EXPECT_EQ(read_jsonl(rows, 0, 0).train.columns[1].values.to_doubles(), (Doubles{1, 2, 3, 0}));
  TextOptions options = bytes();
  options.layout = TextOptions::Layout::kPad;
  options.length = 4;
  options.ignored_label = 9;
  const RawData texts = read_texts(write("t.txt", "ab\nab abc\n"), "text", options, {});
  EXPECT_EQ(texts.train.columns[3].values.to_doubles(), (Doubles{6, 0, 9, 9, 6, 4, 7, 0}));
}

// Labels of tokens that are not called so are known when they are bound.
TEST_F(Texts, PaddingOfOtherLabelsIsIgnoredToo) {
  const std::string rows = write("t.jsonl",
                                 "{\"input_ids\": [5, 6], \"ner_tags\": [1, 2]}\n"
                                 "{\"input_ids\": [7], \"ner_tags\": [1]}\n");
  DataSpec spec = next_tokens(2);
  spec.label->shifted_input = false;
  spec.label->classes = 3;
  spec.label->ignore_index = -1;
  BindOptions named;
  named.bindings = {{"labels", "ner_tags"}};
  for (const BindOptions& options : {named, BindOptions{}}) {
    const auto bound = bind_data(read_jsonl(rows).train, spec, options);
    EXPECT_EQ(values(*bound.dataset, 0), (Doubles{5, 6, 7, 0}));
    EXPECT_EQ(values(*bound.dataset, 1), (Doubles{1, 2, 1, -1}));
  }
  // Numbers have no value that stands for none.
  spec.label->classes = -1;
  spec.label->dtype = DType::kFloat32;
  EXPECT_EQ(values(*bind_data(read_jsonl(rows).train, spec, named).dataset, 1),
            (Doubles{1, 2, 1, 0}));
}

TEST_F(Texts, SettingsGoThroughMetadata) {
  TextOptions options;
  options.column = "body";
  options.layout = TextOptions::Layout::kPad;
  options.length = 128;
  const TextOptions back = TextOptions::parse(options.text("vocab.txt", "abc"));
  EXPECT_EQ(back.column, "body");
  EXPECT_EQ(back.layout, TextOptions::Layout::kPad);
  EXPECT_EQ(back.length, 128u);
  EXPECT_EQ(back.name, "vocab.txt");
  EXPECT_EQ(back.sha256, "abc");
  data_error([] { TextOptions::parse("sha256=a\nname=../b\n"); });
  data_error([] { TextOptions::parse("sha256=a\nname=b\nlayout=other\n"); });
  data_error([] { TextOptions::parse("name=b\n"); });
}

// A model's file may say any length.
TEST_F(Texts, SamplesOfAbsurdLengthsAreRefused) {
  const std::string file = write("t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"12\"}\n");
  TextOptions options = bytes();
  options.layout = TextOptions::Layout::kPad;
  options.trained_length = std::size_t{1} << 62;
  expect_contains(data_error([&] { read_texts(file, "jsonl", options, {}); }), "too long");
  EXPECT_TRUE(pads_too_much(4, std::size_t{1} << 62, 8));
  EXPECT_FALSE(pads_too_much(4, 1000, 8));
}

// The settings are lines of a model's metadata.
TEST(TextSettings, KeepLineBreaksAndBackslashes) {
  TextOptions options;
  options.end_of_text = "\n";
  options.column = "a\\nb\nc\\";
  const TextOptions read = TextOptions::parse(options.text("a\\nb.json", "12ab"));
  EXPECT_EQ(read.end_of_text, options.end_of_text);
  EXPECT_EQ(read.column, options.column);
  EXPECT_EQ(read.name, "a\\nb.json");
  EXPECT_EQ(TextOptions::parse("sha256=1\nname=t\ncolumn=a\\b\n").column, "a\\b");
}

}  // namespace
}  // namespace pipetrain
