// The readers of images in folders, WebDataset and TFRecord, on small files built by hand.
#include <zlib.h>

#include "data/files/npz_writer.h"
#include "data/formats/format_files.h"
#include "data/formats/made_data.h"

namespace pipetrain::format_files {
namespace {

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
  write("d/3.png", kPng);
  EXPECT_EQ(read_image_folder(path("d")).warnings.size(), 1u);
  expect_contains(read_image_folder(path("d")).warnings[0],
                  "1 image beside the folders of classes is ignored");
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
  // What lies beside them is no class.
  write("s/__MACOSX/notes", "x");
  EXPECT_EQ(opened(path("s"), wants({3, 2, 3}, 2)).class_names.size(), 2u);
  write("s/drafts/1.png", kPng);
  const OpenedData again = opened(path("s"), wants({3, 2, 3}, 2));
  EXPECT_EQ(again.class_names, (std::vector<std::string>{"a", "b"}));
  expect_contains(again.description, "beside the folders of the parts, drafts is not read");
  // Vehicles.
  write("v/train/1.png", kPng);
  write("v/bus/1.png", kPng);
  EXPECT_EQ(opened(path("v"), wants({3, 2, 3}, 2)).class_names,
            (std::vector<std::string>{"bus", "train"}));
}

TEST_F(Formats, FoldersOfImagesBehindLinks) {
  write("elsewhere/1.png", kPng);
  const auto link = [&](const std::string& name) {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::filesystem::create_symlink(path("elsewhere"), path(name));
  };
  link("d/train/cats");
  EXPECT_EQ(opened(path("d"), wants({3, 2, 3}, 1)).class_names, std::vector<std::string>{"cats"});
  link("d/dev/cats");
  EXPECT_EQ(opened(path("d"), wants({3, 2, 3}, 1)).validation->size(), 1u);
  // One that leads nowhere, or round in a circle, is no class.
  std::filesystem::create_symlink("gone", path("d/train/dogs"));
  std::filesystem::create_symlink("loop", path("d/train/loop"));
  std::filesystem::create_symlink("..", path("d/train/up"));
  EXPECT_EQ(opened(path("d"), wants({3, 2, 3}, 1)).class_names, std::vector<std::string>{"cats"});
}

// Models store the names of their classes in lines of text.
TEST_F(Formats, FoldersWhoseNamesCannotNameClassesAreRefused) {
  for (const auto& [folder, fault] :
       {std::pair<std::string, const char*>{"two\nlines", "has a line break"},
        {"B\xe4r", "is not UTF-8"}}) {
    // The folder above those of the classes may be called so, and one without images.
    const std::string data = path(folder + "/data");
    write(folder + "/data/ant/1.png", kPng);
    const std::string image = write(folder + "/data/" + folder + "/1.png", kPng);
    const std::string said = data_error([&] { read_image_folder(data); });
    expect_contains(said, fault);
    expect_contains(said, "rename the folder");
    std::filesystem::remove(image);
    EXPECT_EQ(read_image_folder(data).train.columns.at(1).class_names,
              std::vector<std::string>{"ant"});
  }
}

TEST_F(Formats, ImagesAreFoundByNameAndPattern) {
  for (const char* name : {"d/a.jpg", "d/b.jfif", "d/c.JPE"}) write(name, kGreyJpeg);
  for (const char* name : {"d/d.pbm", "d/e.tga"}) write(name, "x");
  const RawData folder = read_source(path("d"), {});
  ASSERT_EQ(folder.train.columns.size(), 1u);
  EXPECT_EQ(folder.train.columns[0].rows(), 3u);
  ASSERT_EQ(folder.warnings.size(), 1u);
  expect_contains(folder.warnings[0], "2 images in formats that are not read are ignored");
  const RawData matched = read_source(path("d/?.j*"), {});
  EXPECT_EQ(matched.format, "images");
  EXPECT_EQ(matched.train.columns.at(0).rows(), 2u);
  expect_contains(data_error([&] { read_image_folder(path("d/*.gif")); }), "no file matches");
  expect_contains(data_error([&] { read_image_folder(path("f.gif")); }), "there is no data file");
}

// A PNG file of one gray pixel.
std::string gray(int value) {
  const auto chunk = [](const std::string& content) {  // its type first
    return big(content.size() - 4, 4) + content +
           big(::crc32(0, reinterpret_cast<const Bytef*>(content.data()),
                       static_cast<uInt>(content.size())),
               4);
  };
  const std::string pixels = {'\0', static_cast<char>(value)};  // after the row's filter
  const auto a = static_cast<std::uint64_t>(1 + value);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR" + big(1, 4) + big(1, 4) + big(0x0800000000, 5)) +
         chunk("IDAT" + from_hex("7801010200fdff") + pixels + big(1 + a, 2) + big(a, 2)) +
         chunk("IEND");
}

TEST_F(Formats, MasksLieInFoldersAsTheirImages) {
  for (const std::string& name : {"a/0", "a/1", "b/0", "b/1"}) {
    write("m/images/" + name + ".png", gray(9));
    write("m/masks/" + name + ".png", gray(2 * (name[0] - 'a') + name[2] - '0'));
  }
  const auto labels = [&] {
    return read_image_folder(path("m")).train.columns[1].values.to_doubles();
  };
  EXPECT_EQ(labels(), (Doubles{0, 1, 2, 3}));
  // Elsewhere only where there is no doubt.
  std::filesystem::rename(path("m/masks/b"), path("m/masks/c"));
  expect_contains(data_error(labels), "has two masks, ");
  std::filesystem::remove_all(path("m/masks/a"));
  expect_contains(data_error(labels), "may belong to");
  std::filesystem::remove_all(path("m/images/a"));
  EXPECT_EQ(labels(), (Doubles{2, 3}));
  write("m/masks/c/1.PNG", gray(1));
  expect_contains(data_error(labels), "has two masks, ");
}

TEST_F(Formats, MasksOfBothPartsHaveTheSameValues) {
  const auto labels = [&](const RawSplit& split) { return split.columns[1].values.to_doubles(); };
  for (const std::string& part : {"train", "val"}) {
    for (const int i : {0, 1}) {
      write(fmt::format("m/{}/images/{}.png", part, i), gray(9));
      write(fmt::format("m/{}/masks/{}.png", part, i), gray(255 * i));
    }
  }
  RawData got = read_image_folder(path("m"));
  EXPECT_EQ(labels(got.train), (Doubles{0, 1}));
  EXPECT_EQ(labels(got.validation), (Doubles{0, 1}));
  EXPECT_EQ(labels(read_image_folder(path("m"), /*masks_are_drawings=*/false).train),
            (Doubles{0, 255}));
  write("m/train/images/2.png", gray(9));
  write("m/train/masks/2.png", gray(1));
  got = read_image_folder(path("m"));
  EXPECT_EQ(labels(got.train), (Doubles{0, 255, 1}));
  EXPECT_EQ(labels(got.validation), (Doubles{0, 255}));
  // So in other data.
  DataSpec spec = wants({1, 1, 1}, 1);
  spec.label->classes = 256;
  spec.label->sample_shape = {1, 1};
  DataOptions options;
  options.path = path("m/train");
  options.validation_path = path("m/val");
  EXPECT_EQ(values(*open_data(options, spec).validation, 1), (Doubles{0, 255}));
}

TEST_F(Formats, MasksOfPartsLieBesideTheirImages) {
  const auto labels = [&](const RawSplit& split) { return split.columns[1].values.to_doubles(); };
  int value = 0;
  for (const std::string& name : {"train/0", "train/1", "val/0", "test/0"}) {
    write("m/images/" + name + ".png", gray(9));
    write("m/masks/" + name + ".png", gray(value++));
  }
  RawData got = read_image_folder(path("m"));
  EXPECT_EQ(labels(got.train), (Doubles{0, 1}));
  EXPECT_EQ(labels(got.validation), Doubles{2});
  ASSERT_EQ(got.notes.size(), 2u);
  expect_contains(got.notes[0], "labels from the masks in \"masks/train\"");
  EXPECT_TRUE(got.warnings.empty());
  write("m/images/1.png", gray(9));
  EXPECT_EQ(read_image_folder(path("m")).warnings.size(), 1u);
  std::filesystem::remove(path("m/images/1.png"));
  // All masks are drawings, or none is.
  write("m/masks/train/0.png", gray(255));
  EXPECT_EQ(labels(read_image_folder(path("m")).train), (Doubles{255, 1}));
  write("m/masks/val/0.png", gray(255));
  write("m/masks/train/1.png", gray(0));
  got = read_image_folder(path("m"));
  EXPECT_EQ(labels(got.train), (Doubles{1, 0}));
  EXPECT_EQ(labels(got.validation), Doubles{1});
  std::filesystem::remove_all(path("m/images/val"));
  EXPECT_EQ(read_image_folder(path("m")).validation.columns.size(), 2u);  // test
  std::filesystem::remove_all(path("m/masks/test"));
  expect_contains(data_error([&] { read_image_folder(path("m")); }), "have no masks: there is no");
  // A single folder is no part.
  std::filesystem::remove_all(path("m/images/test"));
  got = read_image_folder(path("m"));
  EXPECT_EQ(labels(got.train), (Doubles{1, 0}));
  EXPECT_TRUE(got.validation.empty());
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

TEST_F(Formats, FlatInputsAreNormalizedByChannel) {
  write("d/a/1.png", kPng);
  DataOptions options;
  options.bind.normalization = Normalization::parse("imagenet");
  const Doubles planes = values(*opened(path("d"), wants({3, 2, 3}, 1), options).train, 0);
  EXPECT_NEAR(planes[0], (1 - 0.485) / 0.229, 1e-5);
  EXPECT_EQ(values(*opened(path("d"), wants({18}, 1), options).train, 0), planes);
  // One of bytes cannot hold what is normalized.
  DataSpec bytes = wants({3, 2, 3}, 1);
  bytes.inputs[0].dtype = DType::kUint8;
  expect_contains(data_error([&] { opened(path("d"), bytes, options); }, ErrorKind::kUsage),
                  "`normalize` per channel needs an input of real numbers, but \"in\" is uint8");
  EXPECT_EQ(values(*opened(path("d"), bytes).train, 0), kPlanes);
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
  // The first of them, too.
  write("d/a/1.png", kPng.substr(0, 50));
  std::filesystem::remove(bad);
  EXPECT_EQ(values(*opened(path("d"), wants({3, 2, 3}, 2), options).train, 1), Doubles{1});
  expect_contains(data_error([&] { opened(path("d"), wants({3, 2, 3}, 2)); }), path("d/a/1.png"));
  write("d/b/1.png", kPng.substr(0, 40));
  expect_contains(data_error([&] { read_source(path("d"), {}); }), path("d/a/1.png"));
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
  // A member of its own is before them.
  for (const char* part : {"1.cls", "1.label"}) {
    const std::string both = tar_member(part, "2") + json;
    EXPECT_EQ(values(*opened(write("b.tar", both), wants({3, 2, 3}, 4)).train, 1), Doubles{2});
  }
  const std::string missing = tar_member("1.png", kPng) + tar_member("1.cls", "0") +
                              tar_member("2.png", kPng) + tar_member("3.png", kPng);
  expect_contains(data_error([&] { read_source(write("m.tar", missing), {}); }), "m.tar member 2");
}

TEST_F(Formats, WebDatasetMembersOfASampleFollowOneAnother) {
  const auto member = [](const std::string& name, char value) {
    const TensorType type{DType::kUint8, Shape{1}, Layout::kRowMajor};
    return tar_member(name, npy_header(type) + value);
  };
  const std::string x0 = member("000.x.npy", 1), y0 = member("000.y.npy", 2);
  const std::string x1 = member("001.x.npy", 3), y1 = member("001.y.npy", 4);
  const RawData raw = read_source(write("a.tar", x0 + y0 + x1 + y1 + kTarEnd), {});
  ASSERT_EQ(raw.train.columns.size(), 2u);
  EXPECT_EQ(raw.train.columns[0].values.to_doubles(), (Doubles{1, 3}));
  EXPECT_EQ(raw.train.columns[1].values.to_doubles(), (Doubles{2, 4}));
  const std::string mixed = write("m.tar", x0 + y1 + y0 + x1 + kTarEnd);
  expect_contains(data_error([&] { read_source(mixed, {}); }),
                  "m.tar member 001 has other arrays than the first sample");
  const std::string twice = write("t.tar", member("000.npy", 1) + x0 + kTarEnd);
  expect_contains(data_error([&] { read_source(twice, {}); }), "has two arrays \"x\"");
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

TEST_F(Formats, TfRecordsOfListsInAnyOrder) {
  const auto ids_of = [&](std::initializer_list<const char*> rows) {
    std::string file;
    for (const char* ids : rows)
      file += record(feature("ids", 3, field(1, ids)) + feature("label", 3, field(1, "\x01")));
    return read_source(write("l.tfrecord", file), {}).train.columns.at(0).values.to_doubles();
  };
  EXPECT_EQ(ids_of({"\x07", "\x01\x02\x03", "\x08\x09"}), (Doubles{7, 0, 0, 1, 2, 3, 8, 9, 0}));
  EXPECT_EQ(ids_of({"\x01\x02\x03", "\x07", "\x08\x09"}), (Doubles{1, 2, 3, 7, 0, 0, 8, 9, 0}));
  // Rows of real numbers have one length.
  const auto reals = [](std::initializer_list<float> numbers) {
    return record(feature("ids", 2, field(1, little_floats(numbers))) +
                  feature("label", 3, field(1, "\x01")));
  };
  const RawData raw = read_source(write("r.tfrecord", reals({1}) + reals({2, 3})), {});
  EXPECT_EQ(raw.train.columns.size(), 1u);
}

TEST_F(Formats, TfRecordsOfImagesWithListsOfLabels) {
  const auto example = [](const std::string& labels) {
    return record(feature("image/encoded", 1, field(1, kPng)) +
                  feature("image/class/label", 3, field(1, labels)));
  };
  const std::string file = write("o.tfrecord", example("\x01\x02") + example("\x03\x04\x05"));
  const RawData raw = read_source(file, {});
  EXPECT_FALSE(raw.train.shards);
  ASSERT_EQ(raw.train.columns.size(), 2u);
  const RawColumn& labels = raw.train.columns[1];
  EXPECT_EQ(labels.role, ColumnRole::kLabel);
  EXPECT_EQ(labels.values.shape(), (Shape{2, 3}));
  EXPECT_EQ(labels.values.to_doubles(), (Doubles{1, 2, -100, 3, 4, 5}));
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

}  // namespace
}  // namespace pipetrain::format_files
