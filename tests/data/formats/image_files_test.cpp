// MNIST's and CIFAR's files, written by hand.
#include <gtest/gtest.h>

#include "data/rows/readers.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

using Doubles = std::vector<double>;
using Idx = DataFiles;
using Cifar = DataFiles;

std::string idx(int code, std::vector<std::uint32_t> dims, const std::string& data) {
  std::string out = big(0, 2) + big(code, 1) + big(dims.size(), 1);
  for (const std::uint32_t dim : dims) out += big(dim, 4);
  return out + data;
}

TEST_F(Idx, DirectoryWithTheUsualNames) {
  write("train-images-idx3-ubyte", idx(8, {2, 1, 3}, std::string("\x00\x01\x02\x03\x04\xff", 6)));
  write("train-labels-idx1-ubyte", idx(8, {2}, "\x05\x09"));
  write("t10k-images.idx3-ubyte", idx(8, {1, 1, 3}, "abc"));
  write("t10k-labels.idx1-ubyte", idx(8, {1}, "\x03"));
  const RawData raw = read_idx(directory());
  ASSERT_EQ(raw.train.columns.size(), 2u);
  EXPECT_EQ(raw.train.columns[0].values.type().text(), "uint8 (2, 1, 3)");
  EXPECT_EQ(raw.train.columns[0].values.to_doubles(), (Doubles{0, 1, 2, 3, 4, 255}));
  EXPECT_EQ(raw.train.columns[1].values.to_doubles(), (Doubles{5, 9}));
  ASSERT_EQ(raw.validation.columns.size(), 2u);
  EXPECT_EQ(raw.validation.columns[1].values.to_doubles(), Doubles{3});
  // By a pattern, one file of images.
  const RawData matched = read_idx(path("train-images*"));
  ASSERT_EQ(matched.train.columns.size(), 2u);
  EXPECT_EQ(matched.train.columns[0].values.to_doubles(), (Doubles{0, 1, 2, 3, 4, 255}));
  EXPECT_EQ(matched.train.columns[1].values.to_doubles(), (Doubles{5, 9}));
  expect_contains(data_error([&] { read_idx(path("*-images*")); }, ErrorKind::kUsage),
                  "are 2 files, but `format` idx reads one file");
}

TEST_F(Idx, OfADirectoryWithSeveralSetsNoneIsChosen) {
  // Copies of one set, and a file that only describes it.
  write("train-images-idx3-ubyte", idx(8, {1, 1, 1}, "a"));
  write("train-images.idx3-ubyte", idx(8, {1, 1, 1}, "a"));
  write("train-images-idx3-ubyte.gz", "the plain one is read");
  write("about-images.txt", "of digits");
  write("train-images-idx3-ubyte.gz.md5", "of the compressed one");
  EXPECT_EQ(read_idx(directory()).train.columns[0].values.to_doubles(), Doubles{'a'});
  write("more-images-idx3-ubyte", idx(8, {1, 1, 1}, "b"));
  expect_contains(data_error([&] { read_idx(directory()); }, ErrorKind::kUsage),
                  "has the training images of 2 sets: more-images-idx3-ubyte, "
                  "train-images-idx3-ubyte; give one file of training images as `data`, and one of "
                  "validation images as `val-data`");
  EXPECT_EQ(read_idx(path("more-images-idx3-ubyte")).train.columns[0].values.to_doubles(),
            Doubles{'b'});
  std::filesystem::remove(path("more-images-idx3-ubyte"));
  write("a-test-images-ubyte", idx(8, {1, 1, 1}, "c"));
  write("t10k-images-ubyte", idx(8, {1, 1, 1}, "d"));
  expect_contains(data_error([&] { read_idx(directory()); }, ErrorKind::kUsage),
                  "has the validation images of 2 sets: a-test-images-ubyte, t10k-images-ubyte;");
}

TEST_F(Idx, AFileWithItsLabelsBesideIt) {
  const std::string images = write("my-images", idx(8, {1, 1, 1}, "a"));
  write("my-labels", idx(8, {1}, "\x02"));
  EXPECT_EQ(read_idx(images).train.columns.size(), 2u);
  const RawData alone = read_idx(write("lonely-images", idx(8, {1, 1, 1}, "a")));
  EXPECT_EQ(alone.train.columns.size(), 1u);
  expect_contains(alone.notes.at(0), "no labels file");
}

TEST_F(Idx, OtherTypesAreBigEndian) {
  EXPECT_EQ(read_idx(write("a", idx(0x0B, {2, 1}, big(0xfffe, 2) + big(300, 2))))
                .train.columns[0]
                .values.to_doubles(),
            (Doubles{-2, 300}));
  EXPECT_EQ(read_idx(write("b", idx(0x0D, {1, 1}, big(0x3fc00000, 4))))
                .train.columns[0]
                .values.to_doubles(),
            Doubles{1.5});
}

TEST_F(Idx, WrongFilesAreErrors) {
  const auto error = [&](const std::string& content) {
    const std::string file = write("f", content);
    return data_error([&] { read_idx(file); });
  };
  expect_contains(error("GIF89a"), "does not begin with two zero bytes");
  expect_contains(error(""), "not an IDX file");
  expect_contains(error(idx(7, {1}, "a")), "type 0x07");
  expect_contains(error(idx(8, {}, "a")), "rank 0");
  expect_contains(error(idx(8, {2, 2}, "abc")), "ask for more than its 3 bytes");
  expect_contains(error(idx(8, {2}, "abc")), "ask for 2 bytes, it has 3");
  expect_contains(error(idx(8, {0xffffffff, 0xffffffff, 0xffffffff}, "abc")), "ask for more");
  expect_contains(error(idx(8, {0, 0xffffffff}, "")), "ask for more");
  expect_contains(error(idx(8, {1, 1}, "").substr(0, 9)), "truncated");
  std::filesystem::create_directory(path("empty"));
  expect_contains(data_error([&] { read_idx(path("empty")); }), "no IDX images");
}

std::string cifar_row(std::string labels, char red, char green, char blue) {
  return labels + std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

TEST_F(Cifar, Ten) {
  write("data_batch_1.bin", cifar_row("\x03", 1, 2, 3));
  write("data_batch_2.bin", cifar_row("\x09", 4, 5, 6));
  write("test_batch.bin", cifar_row(std::string(1, '\0'), 7, 8, 9));
  ASSERT_EQ(recognise_cifar(directory()), CifarKind::kCifar10);
  EXPECT_EQ(recognise_cifar(path("data_batch_1.bin")), CifarKind::kCifar10);
  const RawData raw = read_cifar(directory(), CifarKind::kCifar10);
  EXPECT_EQ(raw.train.columns[0].values.type().text(), "uint8 (2, 3, 32, 32)");
  EXPECT_EQ(raw.train.columns[1].values.to_doubles(), (Doubles{3, 9}));
  const auto pixels = raw.train.columns[0].values.to_doubles();
  EXPECT_EQ(pixels[0], 1);
  EXPECT_EQ(pixels[1024], 2);
  EXPECT_EQ(pixels[3072 + 2048], 6);
  EXPECT_EQ(raw.validation.columns[1].values.to_doubles(), Doubles{0});
  const RawData matched = read_cifar(path("*.bin"), CifarKind::kCifar10);
  EXPECT_EQ(matched.train.columns[0].values.to_doubles(), pixels);
  EXPECT_EQ(matched.train.columns[1].values.to_doubles(), (Doubles{3, 9}));
  EXPECT_EQ(matched.validation.columns.at(1).values.to_doubles(), Doubles{0});
  const RawData batches = read_cifar(path("data_batch_?.bin"), CifarKind::kCifar10);
  EXPECT_EQ(batches.train.columns[1].values.to_doubles(), (Doubles{3, 9}));
  EXPECT_TRUE(batches.validation.empty());
}

TEST_F(Cifar, HundredTakesTheFineLabels) {
  write("train.bin", cifar_row("\x0b\x13", 1, 2, 3));
  write("test.bin", cifar_row("\x0f\x31", 1, 2, 3));
  EXPECT_FALSE(recognise_cifar(directory()));  // nanoGPT calls its files train.bin too
  write("fine_label_names.txt", "apple\n");
  ASSERT_EQ(recognise_cifar(directory()), CifarKind::kCifar100);
  const RawData raw = read_cifar(directory(), CifarKind::kCifar100);
  EXPECT_EQ(raw.train.columns[1].values.to_doubles(), Doubles{0x13});
  EXPECT_EQ(raw.validation.columns[1].values.to_doubles(), Doubles{0x31});
}

TEST_F(Cifar, TruncatedIsAnError) {
  const std::string file = write("data_batch_1.bin", cifar_row("\x03", 1, 2, 3).substr(1));
  EXPECT_FALSE(recognise_cifar(file));
  expect_contains(data_error([&] { read_cifar(file, CifarKind::kCifar10); }),
                  "3072 bytes are not rows of 3073");
}

}  // namespace
}  // namespace pipetrain
