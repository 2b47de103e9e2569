// The readers of images in folders, WebDataset, TFRecord, JSON Lines, Megatron's tokens and
// LibSVM: small files built by hand from the formats' descriptions, whole and damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/checksum.h"
#include "data/files/npz_writer.h"
#include "data/formats/made_data.h"
#include "data/formats/write_data.h"
#include "data/loading/open_data.h"
#include "data/rows/row_source.h"
#include "support/data_files.h"
#include "support/image_bytes.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;

std::string octal(std::uint64_t value, int digits) { return fmt::format("{:0{}o}", value, digits); }

std::string tar_header(const std::string& name, std::uint64_t size, char type) {
  std::string out = name;
  out.resize(100);
  out += octal(0644, 7) + '\0' + octal(0, 7) + '\0' + octal(0, 7) + '\0';
  out += octal(size, 11) + '\0' + octal(0, 11) + '\0' + "        " + type;
  out.resize(257);
  out += std::string(
      "ustar\0"
      "00",
      8);
  out.resize(512);
  std::uint64_t sum = 0;
  for (const char c : out) sum += static_cast<unsigned char>(c);
  out.replace(148, 8, octal(sum, 6) + std::string("\0 ", 2));
  return out;
}

std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  std::string out = tar_header(name, content.size(), type) + content;
  out.resize((out.size() + 511) / 512 * 512);
  return out;
}

const std::string kTarEnd(1024, '\0');

std::string field(int number, const std::string& content) {  // a protobuf field of bytes
  std::string out(1, static_cast<char>(number << 3 | 2));
  std::size_t length = content.size();
  for (; length > 127; length >>= 7) out += static_cast<char>(length | 128);
  return out + static_cast<char>(length) + content;
}

std::string feature(const std::string& name, int kind, const std::string& list) {
  return field(1, field(1, name) + field(2, field(kind, list)));
}

std::uint32_t masked(const std::string& text) {
  return std::rotr(crc32c(std::as_bytes(std::span(text))), 15) + 0xa282ead8u;
}

std::string record(const std::string& features) {
  const std::string data = field(1, features), length = little(data.size(), 8);
  return length + little(masked(length), 4) + data + little(masked(data), 4);
}

std::string little_floats(std::initializer_list<float> values) {
  std::string out;
  for (const float value : values) out += little(std::bit_cast<std::uint32_t>(value), 4);
  return out;
}

std::string megatron_index(int code, int size, const std::vector<std::uint32_t>& lengths) {
  std::string out = std::string("MMIDIDX\0\0", 9) + little(1, 8) + static_cast<char>(code) +
                    little(lengths.size(), 8) + little(lengths.size() + 1, 8),
              pointers, documents;
  std::uint64_t at = 0;
  for (const std::uint32_t length : lengths) {
    out += little(length, 4);
    pointers += little(at, 8);
    at += length * static_cast<std::uint64_t>(size);
  }
  for (std::size_t i = 0; i <= lengths.size(); ++i) documents += little(i, 8);
  return out + pointers + documents;
}

DataSpec wants(Shape input, std::int64_t classes) {
  DataSpec out;
  out.inputs.push_back({"in", DType::kFloat32, std::move(input), -1});
  out.label = LabelSpec{};
  out.label->classes = classes;
  return out;
}

DataSpec wants_tokens(std::int64_t length, std::int64_t vocabulary) {
  DataSpec out;
  out.inputs.push_back({"ids", DType::kInt64, {length}, vocabulary});
  out.label = LabelSpec{};
  out.label->sample_shape = Shape{length};
  out.label->classes = vocabulary;
  out.label->shifted_input = true;
  return out;
}

class Formats : public DataFiles {
 protected:
  OpenedData opened(const std::string& path, const DataSpec& spec, DataOptions options = {}) {
    options.path = path;
    if (options.bind.normalization.kind == Normalization::Kind::kAuto &&
        options.bind.normalization.mean.empty()) {
      options.bind.normalization = Normalization::parse("none");
    }
    return open_data(options, spec);
  }
};

const Doubles kPlanes = {255, 0, 0, 10, 40, 70, 0, 255, 0, 20, 50, 80, 0, 0, 255, 30, 60, 90};

TEST_F(Formats, FoldersOfImages) {
  write("d/zebra/1.png", kPng);
  write("d/ant/2.bmp", kBmp);
  write("d/ant/deep/1.PNG", kPng);
  write("d/ant/notes.txt", "x");
  write("d/empty/readme", "x");
  const OpenedData data = opened(path("d"), wants({3, 2, 3}, 2));
  EXPECT_EQ(data.class_names, (std::vector<std::string>{"ant", "zebra"}));
  EXPECT_EQ(values(*data.train, 1), (Doubles{0, 0, 1}));
  EXPECT_EQ(values(*data.train, 0, {2}), kPlanes);
  expect_contains(data.description, "folder \"empty\" has no images");
  // Channels last, and grey.
  EXPECT_EQ(values(*opened(path("d"), wants({2, 3, 3}, 2)).train, 0, {0})[4], 255);
  EXPECT_EQ(values(*opened(path("d"), wants({1, 2, 3}, 2)).train, 0, {0}),
            (Doubles{76, 150, 29, 18, 48, 78}));
  EXPECT_EQ(values(*opened(path("d"), wants({18}, 2)).train, 0, {0}), kPlanes);
  // Parts of their own.
  write("s/train/a/1.png", kPng);
  write("s/train/b/1.png", kPng);
  write("s/val/b/1.png", kPng);
  const OpenedData parts = opened(path("s"), wants({3, 2, 3}, 2));
  ASSERT_TRUE(parts.validation);
  EXPECT_EQ(values(*parts.validation, 1), Doubles{1});
}

TEST_F(Formats, ImagesAreFittedScaledAndNormalised) {
  std::string wide = "P5 4 2 255\n";
  for (int i = 0; i < 8; ++i) wide += static_cast<char>(10 * (i + 1));
  write("w/a/1.pgm", wide);  // 10 20 30 40 / 50 60 70 80
  DataOptions options;
  EXPECT_EQ(values(*opened(path("w"), wants({1, 2, 2}, 1), options).train, 0),
            (Doubles{20, 30, 60, 70}));
  options.bind.image.fit = ImageFit::kPad;
  EXPECT_EQ(values(*opened(path("w"), wants({1, 4, 4}, 1), options).train, 0),
            (Doubles{0, 0, 0, 0, 10, 20, 30, 40, 50, 60, 70, 80, 0, 0, 0, 0}));
  options.bind.image.fit = ImageFit::kStretch;
  const Doubles stretched = values(*opened(path("w"), wants({1, 2, 2}, 1), options).train, 0);
  EXPECT_NEAR(stretched[0], (3 * 10 + 3 * 20 + 30) / 7.0, 1e-4);
  options.bind.normalization = Normalization::parse("0.5/0.25");
  options.bind.image.fit = ImageFit::kCrop;
  const Doubles scaled = values(*opened(path("w"), wants({1, 2, 2}, 1), options).train, 0);
  EXPECT_NEAR(scaled[0], (20 / 255.0 - 0.5) / 0.25, 1e-6);
  expect_contains(data_error(
                      [&] {
                        options.bind.normalization = Normalization::parse("imagenet");
                        opened(path("w"), wants({1, 2, 2}, 1), options);
                      },
                      ErrorKind::kUsage),
                  "3 means");
}

TEST_F(Formats, AugmentationIsOfTheStepAndOfTrainingOnly) {
  write("d/a/1.png", kPng);
  write("d/b/1.png", kPng);
  DataOptions options;
  options.bind.image.augmentation = Augmentation::parse("flip");
  const OpenedData data = opened(path("d"), wants({3, 2, 3}, 2), options);
  EXPECT_EQ(values(*data.train, 0, {0}), kPlanes);
  int flipped = 0;
  const std::size_t index = 1;
  for (std::uint64_t step = 0; step < 100; ++step) {
    const HostTensor out(data.train->columns()[0].batch_type(1));
    data.train->gather_augmented(step, {&index, 1}, 0, out.view());
    const Doubles got = out.to_doubles();
    EXPECT_TRUE(got == kPlanes || got[2] == 255);
    flipped += got != kPlanes;
  }
  EXPECT_NEAR(flipped, 50, 20);
  // Of the run's seed, too.
  const auto flips_of = [&](std::uint64_t seed) {
    DataOptions seeded = options;
    seeded.seed = seeded.bind.image.seed = seed;
    const OpenedData opened_again = opened(path("d"), wants({3, 2, 3}, 2), seeded);
    std::string flips;
    for (std::uint64_t step = 0; step < 40; ++step) {
      const HostTensor out(opened_again.train->columns()[0].batch_type(1));
      opened_again.train->gather_augmented(step, {&index, 1}, 0, out.view());
      flips += out.to_doubles() == kPlanes ? '.' : 'x';
    }
    return flips;
  };
  EXPECT_EQ(flips_of(7), flips_of(7));
  EXPECT_NE(flips_of(7), flips_of(8));
  // Arrays too, and what is no image says so.
  NpzWriter writer(path("a.npz"));
  const RawSplit glyphs = make_glyphs(4, 1, 8);
  writer.add("x", glyphs.columns[0].values.view());
  writer.add("y", glyphs.columns[1].values.view());
  writer.commit();
  EXPECT_NO_THROW(opened(path("a.npz"), wants({1, 8, 8}, 10), options));
  write("t.csv", "1,2,0\n3,4,1\n");
  expect_contains(
      data_error([&] { opened(path("t.csv"), wants({2}, 2), options); }, ErrorKind::kUsage),
      "`augment`");
}

TEST_F(Formats, BadImagesAreNamedOrLeftOut) {
  write("d/a/1.png", kPng);
  const std::string bad = write("d/a/2.png", kPng.substr(0, 50));
  write("d/b/1.png", kPng);
  const OpenedData data = opened(path("d"), wants({3, 2, 3}, 2));
  expect_contains(data_error([&] { values(*data.train, 0, {1}); }), bad);
  DataOptions options;
  options.bind.on_bad_sample = BadSample::kSkip;
  const OpenedData good = opened(path("d"), wants({3, 2, 3}, 2), options);
  EXPECT_EQ(values(*good.train, 1), (Doubles{0, 1}));
  expect_contains(good.description, "1 bad sample skipped");
}

std::string web_shard(char type, const std::string& first) {
  std::string out;
  if (type == 'x') {
    const std::string path = " path=" + first + "/0.png\n";
    out += tar_member("pax", fmt::format("{}{}", path.size() + 3, path), 'x');
  }
  if (type == 'L') out += tar_member("././@LongLink", first + "/0.png" + '\0', 'L');
  out += tar_member(type == '0' ? first + "/0.png" : "short", kPng);
  return out + tar_member(first + "/0.cls", "1\n") + tar_member(first + "/1.png", kPng) +
         tar_member(first + "/1.cls", "0") + kTarEnd;
}

TEST_F(Formats, WebDatasetOfEveryTar) {
  const std::string directory(90, 'd');
  for (const char type : {'0', 'x', 'L'}) {
    const std::string file = write("a.tar", web_shard(type, directory));
    const OpenedData data = opened(file, wants({3, 2, 3}, 2));
    EXPECT_EQ(data.format, "WebDataset (tar)");
    EXPECT_EQ(values(*data.train, 1), (Doubles{1, 0}));
    EXPECT_EQ(values(*data.train, 0, {1}), kPlanes);
  }
  // A member that fills its block to the last byte.
  const std::string full = tar_member("1.txt", std::string(512, 't')) + tar_member("1.png", kPng) +
                           tar_member("1.cls", "1") + kTarEnd;
  EXPECT_EQ(values(*opened(write("f.tar", full), wants({3, 2, 3}, 2)).train, 1), Doubles{1});
  write("shards/0.tar", web_shard('0', "a"));
  write("shards/1.tar", web_shard('0', "b"));
  EXPECT_EQ(opened(path("shards"), wants({3, 2, 3}, 2)).train->size(), 4u);
  const std::string json = tar_member("1.png", kPng) + tar_member("1.json", R"({"label": 3})");
  EXPECT_EQ(values(*opened(write("j.tar", json), wants({3, 2, 3}, 4)).train, 1), Doubles{3});
  const std::string missing = tar_member("1.png", kPng) + tar_member("1.cls", "0") +
                              tar_member("2.png", kPng) + tar_member("3.png", kPng);
  expect_contains(data_error([&] { read_source(write("m.tar", missing), {}); }), "m.tar member 2");
}

std::string examples() {
  std::string out;
  for (int i = 0; i < 3; ++i) {
    out += record(feature("x", 2, field(1, little_floats({i + 0.5f, -1.0f * i}))) +
                  feature("label", 3, std::string("\x08", 1) + static_cast<char>(i)) +
                  feature("name", 1, field(1, std::string(static_cast<std::size_t>(i + 1), 'n'))));
  }
  return out;
}

TEST_F(Formats, TfRecordsOfExamples) {
  const OpenedData data = opened(write("a.tfrecord", examples()), wants({2}, 3));
  EXPECT_EQ(values(*data.train, 0), (Doubles{0.5, 0, 1.5, -1, 2.5, -2}));
  EXPECT_EQ(values(*data.train, 1), (Doubles{0, 1, 2}));
  expect_contains(data.description, "\"name\" is left out");
  const std::string images = record(feature("image/encoded", 1, field(1, kPng)) +
                                    feature("image/class/label", 3, field(1, "\x01")) +
                                    feature("image/height", 3, field(1, "\x02")));
  const OpenedData image = opened(write("i.tfrecord", images), wants({3, 2, 3}, 2));
  EXPECT_EQ(values(*image.train, 0), kPlanes);
  EXPECT_EQ(values(*image.train, 1), Doubles{1});
  std::string changed = examples();
  changed[changed.size() / 2] ^= 1;
  expect_contains(data_error([&] { read_source(write("c.tfrecord", changed), {}); }),
                  "c.tfrecord record 1");
  std::string number = record(feature("x", 2, field(1, little_floats({1, 2}))));
  number[number.size() - 5] ^= 1;  // of the last float, before the record's checksum
  expect_contains(data_error([&] { read_source(write("n.tfrecord", number), {}); }),
                  "record 0 is damaged: its checksum is wrong");
}

// As generate_cifar10_tfrecords.py of TensorFlow's CIFAR-10 example writes them: the bytes of the
// red plane, then those of the green and of the blue one.
TEST_F(Formats, TensorFlowsCifar10) {
  const auto records = [](int first, int count) {
    std::string out;
    for (int i = first; i < first + count; ++i) {
      std::string planes;
      for (int byte = 0; byte < 3 * 32 * 32; ++byte)
        planes += static_cast<char>((byte / 1024 * 50 + byte % 32 + i) % 256);
      out += record(feature("image", 1, field(1, planes)) +
                    feature("label", 3, std::string("\x08", 1) + static_cast<char>(i % 10)));
    }
    return out;
  };
  write("cifar-10/train.tfrecords", records(0, 5));
  write("cifar-10/validation.tfrecords", records(5, 2));
  write("cifar-10/eval.tfrecords", records(7, 3));
  const OpenedData data = opened(path("cifar-10"), wants({3, 32, 32}, 10));
  ASSERT_EQ(data.train->size(), 5U);
  ASSERT_TRUE(data.validation);
  EXPECT_EQ(data.validation->size(), 5U);
  EXPECT_EQ(values(*data.train, 1), (Doubles{0, 1, 2, 3, 4}));
  const Doubles images = values(*data.train, 0);
  ASSERT_EQ(images.size(), 5U * 3 * 32 * 32);
  for (std::size_t at = 0; at < images.size(); ++at) {
    const std::size_t byte = at % 3072;
    ASSERT_EQ(images[at], static_cast<double>(byte / 1024 * 50 + byte % 32 + at / 3072)) << at;
  }
}

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

TEST_F(Formats, WrongJsonNamesTheLine) {
  const std::pair<const char*, const char*> bad[] = {
      {"{\"x\": [1, 2]}\n{\"x\": [1,}\n", "line 2"},
      {"{\"x\": [1, 2]}\n{\"y\": [1, 2]}\n", "line 2: \"x\" is missing"},
      {"{\"x\": [1, [2]]}\n", "mixes numbers and lists"},
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
}  // namespace pipetrain
