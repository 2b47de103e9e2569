// The readers of JSON Lines, Megatron's tokens and LibSVM on small files built by hand, the writer,
// and what every reader makes of damaged files.
#include <algorithm>
#include <filesystem>

#include "data/formats/format_files.h"
#include "data/formats/made_data.h"
#include "data/formats/write_data.h"

namespace pipetrain::format_files {
namespace {

TEST_F(Formats, JsonLines) {
  const std::string rows =
      "{\"x\": [[1, 2], [3, 4.5]], \"y\": 1, \"more\": {\"a\": [1]}}\n\n"
      "{\"y\": 0, \"x\": [[5, 6], [7, 8]]}\n";
  const OpenedData data = opened(write("a.jsonl", rows), wants({2, 2}, 2));
  EXPECT_EQ(values(*data.train, 0), (Doubles{1, 2, 3, 4.5, 5, 6, 7, 8}));
  EXPECT_EQ(values(*data.train, 1), (Doubles{1, 0}));
  const std::string words =
      "{\"x\": [1, 2], \"label\": \"dog\"}\n{\"x\": [3, 4], \"label\": \"cat\"}\n";
  EXPECT_EQ(values(*opened(write("w.jsonl", words), wants({2}, 2)).train, 1), (Doubles{1, 0}));
  // Tokens of several lengths are one stream; with labels, they are filled up.
  const std::string tokens = "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5]}\n";
  const OpenedData stream = opened(write("t.jsonl", tokens), wants_tokens(2, 10));
  EXPECT_EQ(values(*stream.train, 0), (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(values(*stream.train, 1), (Doubles{2, 3, 4, 5}));
  const std::string labelled =
      "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n"
      "{\"input_ids\": [4, 5], \"labels\": [4, 5]}\n";
  const OpenedData filled = opened(write("l.jsonl", labelled), wants_tokens(3, 10));
  EXPECT_EQ(values(*filled.train, 0), (Doubles{1, 2, 3, 4, 5, 0}));
  EXPECT_EQ(values(*filled.train, 1), (Doubles{2, 3, -100, 5, -100, -100}));
  const OpenedData text =
      opened(write("s.jsonl", "{\"text\": \"ab\\u00e9\"}\n"), wants_tokens(2, 256));
  EXPECT_EQ(values(*text.train, 0), (Doubles{'a', 'b', 0xc3, 0xa9}));
}

TEST_F(Formats, JsonLabelsAreThoseOfATable) {
  const auto labels = [&](const std::string& one, const std::string& other) {
    return read_jsonl(write("n.jsonl", "{\"x\": 0.5, \"y\": " + one +
                                           "}\n{\"x\": 1.0, \"y\": " + other + "}\n"))
        .train.columns[1]
        .values;
  };
  for (const char* one : {"1", "1.0", "1e0"}) {
    const HostTensor whole = labels(one, "-2.0");
    EXPECT_EQ(whole.dtype(), DType::kInt64) << one;
    EXPECT_EQ(whole.to_doubles(), (Doubles{1, -2})) << one;
    EXPECT_EQ(labels(one, "0.5").to_doubles(), (Doubles{1, 0.5})) << one;
  }
  // Samples without a label are skipped where bad ones are.
  DataOptions skips;
  skips.bind.on_bad_sample = BadSample::kSkip;
  for (const auto& [one, zero] : {std::pair{"1", "0"}, {"\"dog\"", "\"cat\""}}) {
    const std::string json = fmt::format(
        "{{\"x\": [1, 2], \"y\": null}}\n{{\"x\": [3, 4], \"y\": {}}}\n{{\"x\": [5, 6]}}\n"
        "{{\"x\": [7, 8], \"y\": {}}}\n",
        one, zero);
    std::string table = fmt::format("1,2,\n3,4,{}\n5,6,\n7,8,{}\n", one, zero);
    for (const std::string& file : {write("g.jsonl", json), write("g.csv", table)}) {
      const OpenedData got = opened(file, wants({2}, 2), skips);
      EXPECT_EQ(values(*got.train, 0), (Doubles{3, 4, 7, 8})) << file;
      EXPECT_EQ(values(*got.train, 1), (Doubles{1, 0})) << file;
      expect_contains(got.warnings.at(0), "2 bad samples skipped");
    }
    expect_contains(data_error([&] { opened(path("g.jsonl"), wants({2}, 2)); }), "\"y\" is null");
  }
  const std::string lists = "{\"x\": [1, 2], \"y\": [1, 2]}\n{\"x\": [3, 4], \"y\": null}\n";
  expect_contains(data_error([&] { opened(write("l.jsonl", lists), wants({2}, 2), skips); }),
                  "line 2 has lists, which no line may lack");
  const std::string twice = "{\"x\": [1, 2], \"y\": null, \"y\": 1}\n";
  expect_contains(data_error([&] { opened(write("t.jsonl", twice), wants({2}, 2), skips); }),
                  "\"y\" occurs twice");
}

TEST_F(Formats, JsonRowsArePaddedAsInTheTrainingData) {
  DataSpec spec = wants_tokens(4, 9);
  spec.label->sample_shape = {};
  spec.label->shifted_input = false;
  DataOptions options;
  const std::string two = "{\"input_ids\":[1,2],\"label\":0}\n",
                    one = "{\"input_ids\":[3],\"label\":1}\n";
  write("t.jsonl", "{\"input_ids\":[5,6,7,8],\"label\":1}\n" + two);
  for (const std::string& rows : {two + one, one}) {
    options.validation_path = write("v.jsonl", rows);
    const Doubles got = values(*opened(path("t.jsonl"), spec, options).validation, 0);
    EXPECT_EQ(got, rows == one ? (Doubles{3, 0, 0, 0}) : (Doubles{1, 2, 0, 0, 3, 0, 0, 0}));
  }
  write("d/train.jsonl", "{\"input_ids\":[5,6,7,8],\"label\":1}\n" + two);
  write("d/val.jsonl", two);
  EXPECT_EQ(values(*opened(path("d"), spec).validation, 0), (Doubles{1, 2, 0, 0}));
  // Lists of other lengths are no tokens of these rows.
  const RawData pair = read_jsonl(
      write("p.jsonl",
            "{\"a\":[1,2],\"b\":[1],\"labels\":[1,2]}\n{\"a\":[3],\"b\":[4],\"labels\":[3]}\n"),
      3);
  EXPECT_EQ(pair.train.columns[0].values.to_doubles(), (Doubles{1, 2, 0, 3, 0, 0}));
  EXPECT_EQ(pair.train.columns[1].values.to_doubles(), (Doubles{1, 4}));
  EXPECT_EQ(pair.train.columns[2].values.to_doubles(), (Doubles{1, 2, -100, 3, -100, -100}));
  // Of a model of one length.
  options = {};
  options.text.model_length = 4;
  EXPECT_EQ(values(*opened(path("v.jsonl"), spec, options).train, 0), (Doubles{3, 0, 0, 0}));
}

TEST_F(Formats, RowsOfTokensToPredictStayRows) {
  DataSpec spec = wants_tokens(4, 10);
  spec.label.reset();
  spec.is_prediction = true;
  spec.inputs.push_back({"attention_mask", DType::kInt64, {4}, -1});
  DataOptions options;
  options.text.model_length = 4;
  options.text.one_row_per_text = true;
  const auto json = [](const std::string& ids) { return "{\"input_ids\":[" + ids + "]}\n"; };
  const auto tensorflow = [](const std::string& ids) {
    return record(feature("input_ids", 3, field(1, ids)));
  };
  write("two.jsonl", json("1,2,3") + json("4,5"));
  write("two.tfrecord", tensorflow("\x01\x02\x03") + tensorflow("\x04\x05"));
  // One row, or rows that are equally long by chance, are padded too.
  write("one.jsonl", json("6,7"));
  write("one.tfrecord", tensorflow("\x06\x07"));
  for (const char* end : {".jsonl", ".tfrecord"}) {
    const OpenedData two = opened(path(std::string("two") + end), spec, options);
    EXPECT_EQ(values(*two.train, 0), (Doubles{1, 2, 3, 0, 4, 5, 0, 0})) << end;
    EXPECT_EQ(values(*two.train, 1), (Doubles{1, 1, 1, 0, 1, 1, 0, 0})) << end;
    const OpenedData one = opened(path(std::string("one") + end), spec, options);
    EXPECT_EQ(values(*one.train, 0), (Doubles{6, 7, 0, 0})) << end;
    EXPECT_EQ(values(*one.train, 1), (Doubles{1, 1, 0, 0})) << end;
  }
  // Texts without a tokenizer are a stream of bytes, also there.
  EXPECT_TRUE(
      read_jsonl(write("t.jsonl", "{\"text\":\"ab\"}\n"), 4, -100, false, true).train.shards);
}

TEST_F(Formats, JsonLinesToPredictMayLackLabels) {
  const std::string first = "{\"x\":[1,2],\"label\":1}\n";
  const auto columns = [&](const std::string& rows, bool may_lack) {
    return read_jsonl(write("a.jsonl", rows), 0, -100, may_lack).train.columns;
  };
  EXPECT_EQ(columns(first, true).size(), 2U);
  for (const char* other : {"{\"x\":[3,4],\"label\":null}\n", "{\"x\":[3,4]}\n"}) {
    for (const std::string& rows : {first + other, other + first}) {
      const std::vector<RawColumn> got = columns(rows, true);
      ASSERT_EQ(got.size(), 1U) << rows;
      EXPECT_EQ(got[0].name, "x");
      EXPECT_EQ(got[0].values.shape(), (Shape{2, 2}));
    }
    data_error([&] { columns(first + other, false); });
  }
  data_error([&] { columns("{\"x\":null}\n", true); });
}

TEST_F(Formats, JsonOfSeveralParts) {
  write("d/TRAIN.JSONL", "{\"x\":[1],\"y\":0}\n{\"x\":[2],\"y\":1}\n");
  write("d/dev.jsonl", "{\"x\":[3],\"y\":1}\n");
  write("d/README.md", "# x\n");
  const RawData raw = read_source(path("d"), {});
  EXPECT_EQ(raw.train.columns[0].values.to_doubles(), (Doubles{1, 2}));
  ASSERT_FALSE(raw.validation.empty());
  EXPECT_EQ(raw.validation.columns[0].values.to_doubles(), Doubles{3});
  write("d/test.jsonl", "{\"x\":[4]}\n");  // of a competition, without labels
  const RawData tested = read_source(path("d"), {});
  EXPECT_EQ(tested.validation.columns[0].values.to_doubles(), Doubles{3});
  EXPECT_EQ(tested.notes, std::vector<std::string>{
                              "of its validation and test parts, the validation part is used"});
}

TEST_F(Formats, TextsInUtf16AreRefused) {
  std::string wide = "\xff\xfe";
  for (const char c : std::string("1 1:2\n")) wide += std::string{c, '\0'};
  DataOptions options;
  for (const char* format : {"text", "csv", "jsonl", "libsvm", "auto"}) {
    options.format = format;
    const std::string file = write("wide", wide);
    expect_contains(data_error([&] { read_source(file, options); }),
                    "is UTF-16; convert it: iconv -f utf-16 -t utf-8");
  }
}

TEST_F(Formats, WrongJsonNamesTheLine) {
  const std::pair<const char*, const char*> bad[] = {
      {"{\"x\": [1, 2]}\n{\"x\": [1,}\n", "line 2"},
      {"{\"x\": [1, 2]}\n{\"y\": [1, 2]}\n", "line 2: \"x\" is missing"},
      {"{\"x\": [1, [2]]}\n", "mixes numbers and lists"},
      {"{\"x\": [[1, 2], [[3], [4]]]}\n", "mixes numbers and lists"},
      {"{\"x\": [[1, 2], [3]]}\n", "lists of several lengths"},
      {"{\"x\": null}\n", "null"},
      {"{\"x\": 1}\n{\"x\": \"a\"}\n", "string"},
      {"{\"x\": \"a\"}\n{\"x\": 0.5}\n", "string"},
      {"{\"x\": [\"a\"]}\n", "strings in a list"},
      {"{\"x\": [1]}\n[1]\n", "line 2: not a JSON object"},
      {"{\"x\": [1]}\n3\n", "line 2: not a JSON object"},
      {"\"a word\"\n", "line 1: not a JSON object"},
      {"null\n", "line 1: not a JSON object"},
      {"{\"x\": 1, \"x\": 2}\n", "twice"},
      {"{\"x\": [1.5, 2]}\n{\"x\": [1]}\n", "several lengths"},
      {"{\"x\": [[[[[[[1]]]]]]]}\n", "nested too deeply"},
      {"{\"x\": [{\"a\": 1}]}\n", "objects in a list"},
      {"{}\n", "no numbers"},
      {"{\"x\": 1, \"y\": 2}\n{\"x\": 1, \"y\": -1e999}\n",
       "line 2: \"y\" has -1e999, which is too large"},
  };
  for (const auto& [text, says] : bad) {
    const std::string file = write("b.jsonl", text);
    expect_contains(data_error([&] { read_source(file, {}); }), says);
  }
}

TEST_F(Formats, MegatronTokens) {
  std::string tokens;
  for (int i = 1; i <= 7; ++i) tokens += little(static_cast<std::uint64_t>(i), 4);
  write("m.bin", tokens);
  write("m.idx", megatron_index(4, 4, {3, 4}));
  for (const char* name : {"m.idx", "m.bin"}) {
    const OpenedData data = opened(path(name), wants_tokens(3, 10));
    EXPECT_EQ(values(*data.train, 0), (Doubles{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(values(*data.train, 1), (Doubles{2, 3, 4, 5, 6, 7}));
  }
  // The last four tokens come first. Their places follow a header of 34 bytes and two lengths.
  std::string turned = megatron_index(4, 4, {4, 3});
  turned.replace(34 + 8, 16, little(12, 8) + little(0, 8));
  write("m.idx", turned);
  EXPECT_EQ(values(*opened(path("m.idx"), wants_tokens(3, 10)).train, 0),
            (Doubles{4, 5, 6, 7, 1, 2}));
  write("w.bin", little(1, 8) + little((std::uint64_t{1} << 40) + 5, 8));
  write("w.idx", megatron_index(5, 8, {2}));
  expect_contains(data_error([&] { opened(path("w.idx"), wants_tokens(1, 10)); }),
                  "token 1099511627781 out of range 0..9");
  write("m.idx", megatron_index(4, 4, {3, 5}));
  expect_contains(data_error([&] { read_source(path("m.idx"), {}); }), "sequence 1");
  write("m.bin", little(static_cast<std::uint64_t>(-3), 4));
  write("m.idx", megatron_index(4, 4, {1}));
  expect_contains(data_error([&] { read_source(path("m.idx"), {}); }), "negative");
  write("m.idx", megatron_index(7, 4, {1}));
  expect_contains(data_error([&] { read_source(path("m.idx"), {}); }), "type 7");
}

TEST_F(Formats, LibSvm) {
  const std::string rows = "+1 1:0.5 3:-2 # note\n\n-1 qid:7 2:1e1\n-1\n";
  const OpenedData data = opened(write("a.txt2", rows), wants({4}, 2));
  EXPECT_EQ(data.format, "LibSVM");
  EXPECT_EQ(values(*data.train, 0), (Doubles{0.5, 0, -2, 0, 0, 10, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 1), (Doubles{1, 0, 0}));
  expect_contains(data.description, "indices count from 1");
  expect_contains(opened(write("z.svm", "2 0:1\n"), wants({1}, 3)).description, "count from 0");
  expect_contains(data_error([&] { opened(path("a.txt2"), wants({2}, 2)); }), "do not fit");
  const std::pair<const char*, const char*> bad[] = {
      {"1 1:2\n1 1:x\n", "line 2"},     {"a 1:2\n", "label"},
      {"1 2:1 2:1\n", "must increase"}, {"1 999999999:1\n", "out of range"},
      {"1 1:nan\n", "line 1"},          {"1 1:2\n1 3\n", "line 2"},
      {"-1e308 1:2\n", "not a number"}, {"1e39 1:2\n", "not a number"},
  };
  DataOptions options;
  options.format = "libsvm";
  for (const auto& [text, says] : bad) {
    const std::string file = write("b.svm", text);
    expect_contains(data_error([&] { read_source(file, options); }), says);
  }
}

TEST_F(Formats, TinyNumbersOfLibSvmAreZero) {
  const OpenedData data =
      opened(write("t.svm", "1e-400 3:1e-50 4:2\n1 1:-1e-999\n"), wants({4}, 2));
  EXPECT_EQ(values(*data.train, 0), (Doubles{0, 0, 0, 2, 0, 0, 0, 0}));
  EXPECT_EQ(values(*data.train, 1), (Doubles{0, 1}));
}

TEST_F(Formats, LibSvmValuesFitTheInput) {
  DataSpec spec = wants({2}, 2);
  spec.inputs[0].dtype = DType::kInt64;
  spec.inputs[0].upper_bound = 100;
  const std::string file = write("a.svm", "1 1:2.7 2:5\n0 1:3 2:500\n0 2:99\n");
  expect_contains(data_error([&] { opened(file, spec); }),
                  "a.svm line 1; 2 of 3 samples are like that");
  DataOptions options;
  options.bind.on_bad_sample = BadSample::kSkip;
  const OpenedData good = opened(file, spec, options);
  EXPECT_EQ(values(*good.train, 0), (Doubles{0, 99}));
  expect_contains(good.description, "value 2.7 of input \"in\" is not a whole number");
  expect_contains(good.description, "value 500 of input \"in\" out of range 0..99");
}

TEST_F(Formats, LibSvmIndicesCountAsInTheTrainingData) {
  DataOptions options;
  options.validation_path = write("v.svm", "0 1:7\n");
  EXPECT_EQ(values(*opened(write("t.svm", "0 0:1\n1 1:2\n"), wants({2}, 2), options).validation, 0),
            (Doubles{0, 7}));
  options.validation_path = path("t.svm");
  expect_contains(data_error([&] { opened(path("v.svm"), wants({2}, 2), options); }),
                  "has the index 0, but the training data count from 1");
}

TEST_F(Formats, WritesClassNumbersOfTheTrainingPart) {
  write("c/train.csv", "1,a\n2,b\n3,c\n4,a\n");
  write("c/test.csv", "7,b\n8,c\n9,b\n");
  write_data(read_source(path("c"), {}), path("c.npz"), {});
  EXPECT_EQ(read_source(path("c.npz"), {}).validation.columns[1].values.to_doubles(),
            (Doubles{1, 2, 1}));
  write("c/test.csv", "7,d\n");
  expect_contains(data_error([&] { write_data(read_source(path("c"), {}), path("d.npz"), {}); }),
                  "label \"d\" does not occur in the training data");
}

TEST_F(Formats, WritesNamesThatNeedQuotes) {
  const std::string file =
      write("t.csv", "\"a, b\",#c,label\n1,2,\"x, \"\"y\"\"\"\n3,4,#z\n5,6,\" x\"\n");
  const RawData raw = read_source(file, {});
  write_data(raw, path("c.csv"), {});
  const RawData again = read_source(path("c.csv"), {});
  ASSERT_EQ(again.train.columns.size(), 2u);
  EXPECT_EQ(again.train.columns[0].field_names, raw.train.columns[0].field_names);
  EXPECT_EQ(again.train.columns[0].values.to_doubles(), (Doubles{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(again.train.columns[1].class_names, (std::vector<std::string>{" x", "#z", "x, \"y\""}));
  EXPECT_EQ(again.train.columns[1].values.to_doubles(), (Doubles{2, 1, 0}));
}

TEST_F(Formats, WritesWhatItReads) {
  RawData raw;
  raw.train = make_glyphs(5, 3, 28);
  raw.validation = make_glyphs(2, 4, 28);
  write_data(raw, path("g.npz"), {});
  const RawData again = read_source(path("g.npz"), {});
  EXPECT_EQ(again.train.columns[0].values.to_doubles(), raw.train.columns[0].values.to_doubles());
  EXPECT_EQ(again.validation.columns[1].values.to_doubles(),
            raw.validation.columns[1].values.to_doubles());
  raw.train = make_spirals(6, 1);
  write_data(raw, path("s.csv"), {});
  const RawData points = read_source(path("s.csv"), {});
  EXPECT_EQ(points.train.columns[0].values.to_doubles(), raw.train.columns[0].values.to_doubles());
  EXPECT_EQ(points.train.columns[1].values.to_doubles(), (Doubles{0, 1, 0, 1, 0, 1}));
  DataOptions text;
  text.format = "text";
  write_data(read_source(write("t.txt", "hello"), text), path("t.bin"), {});
  const RawData tokens = read_source(path("t.bin"), {});
  EXPECT_EQ(tokens.train.shards->front().tokens(), 5u);
  EXPECT_EQ(tokens.train.shards->front().token(4), static_cast<std::uint32_t>('o'));
  write("d/a/1.png", kPng);
  write_data(read_source(path("d"), {}), path("p.npz"), {});
  EXPECT_EQ(read_source(path("p.npz"), {}).train.columns[0].values.to_doubles(), kPlanes);
  expect_contains(data_error([&] { write_data(raw, path("x.h5"), {}); }, ErrorKind::kUsage),
                  ".npz");
}

TEST(MadeData, GlyphsAreAFunctionOfSeedAndNumber) {
  const RawSplit few = make_glyphs(10, 7, 28), more = make_glyphs(20, 7, 28);
  const Doubles a = few.columns[0].values.to_doubles(), b = more.columns[0].values.to_doubles();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  EXPECT_NE(a, make_glyphs(10, 8, 28).columns[0].values.to_doubles());
  const Doubles labels = make_glyphs(2000, 1, 4).columns[1].values.to_doubles();
  for (double digit = 0; digit < 10; ++digit) {
    EXPECT_NEAR(static_cast<double>(std::ranges::count(labels, digit)), 200, 60);
  }
}

// Every cut and every changed byte of a file of each format: an error of the data or something
// that can be read to its end, never more than that.
TEST_F(Formats, SurviveAnyDamage) {
  write("m.bin", std::string(28, '\1'));
  const std::pair<const char*, std::string> files[] = {
      {"a.tar", tar_member("0.png", "x") + tar_member("0.cls", "1") +
                    tar_member("p", "16 path=1.png\n\n", 'x')},
      {"a.tfrecord", examples()},
      {"m.idx", megatron_index(4, 4, {3, 4})},
      {"a.jsonl", "{\"x\": [[1, 2.5]], \"y\": \"w\", \"z\": {\"a\": [true]}}\n"},
      {"a.svm", "+1 1:0.5 3:-2 # n\n"},
      {"a.svm.xz",
       from_hex("fd377a585a000004e6d6b4460200210116000000742fe5a301000b312c322c300a"
                "332c342c310a00be395ba6504bd0c30001240ca618d8d81fb6f37d010000000004595a")},
  };
  for (const auto& [name, whole] : files) {
    DataOptions options;
    options.format = std::string(name).starts_with("a.svm")  ? "libsvm"
                     : std::string(name).ends_with(".tar")   ? "webdataset"
                     : std::string(name).ends_with(".idx")   ? "megatron"
                     : std::string(name).ends_with(".jsonl") ? "jsonl"
                                                             : "tfrecord";
    const auto attempt = [&, name = name](const std::string& bytes) {
      // A new file: some file systems bring one that is cut and written again to the disk at once.
      std::filesystem::remove(path(name));
      try {
        const RawData raw = read_source(write(name, bytes), options);
        describe(raw);
        for (const RawColumn& column : raw.train.columns) {
          for (std::size_t row = 0; column.source && row < column.rows(); ++row) {
            column.source->check(row);
          }
        }
      } catch (const Error& error) {
        EXPECT_TRUE(error.kind() == ErrorKind::kData) << error.what();
        EXPECT_TRUE(std::string(error.what()).find(directory()) != std::string::npos)
            << error.what();
      }
    };
    const std::size_t step = whole.size() > 1000 ? 7 : 1;
    for (std::size_t length = 0; length < whole.size(); length += step) {
      attempt(whole.substr(0, length));
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
      // The empty rest of a block of tar says nothing.
      if (whole[at] == 0 && step > 1 && at % 5 != 0) continue;
      std::string changed = whole;
      for (const char value : {'\xff', '\0', '9'}) {
        changed[at] = value;
        attempt(changed);
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::format_files
