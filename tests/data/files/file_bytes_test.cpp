#include "data/files/file_bytes.h"

#include <gtest/gtest.h>

#include "support/data_files.h"

namespace pipetrain {
namespace {

// Python: gzip.compress(b"hello hello hello\n", mtime=0)
const std::string kHello = from_hex("1f8b0800000000000203cb48cdc9c957c840905c003b7c8adf12000000");
// zlib.compressobj(wbits=-15) of the same
const std::string kHelloRaw = from_hex("cb48cdc9c957c840905c00");

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Gzip, InflatesOneAndSeveralMembers) {
  EXPECT_EQ(inflate_gzip(bytes_of(kHello), "f"), "hello hello hello\n");
  const std::string twice = kHello + kHello;
  EXPECT_EQ(inflate_gzip(bytes_of(twice), "f"), "hello hello hello\nhello hello hello\n");
  const std::string padded = kHello + std::string(512, '\0');
  EXPECT_EQ(inflate_gzip(bytes_of(padded), "f"), "hello hello hello\n");
}

TEST(Gzip, TakesNoMoreMemoryThanItNeeds) {
  std::string many;
  for (int i = 0; i < 60000; ++i) many += kHello;
  EXPECT_EQ(inflate_gzip(bytes_of(many), "f", 4096).size(), 4096u);
  const std::string whole = inflate_gzip(bytes_of(many), "f");
  EXPECT_EQ(whole.size(), 18u * 60000);
  EXPECT_LE(whole.capacity(), 2 * whole.size());
}

// Python: lzma.compress(b"1,2,0\n3,4,1\n")
const std::string kXz = from_hex(
    "fd377a585a000004e6d6b4460200210116000000742fe5a301000b312c322c300a332c342c310a00be395ba6"
    "504bd0c30001240ca618d8d81fb6f37d010000000004595a");

TEST(Xz, InflatesAndFindsDamage) {
  EXPECT_TRUE(is_xz(bytes_of(kXz)));
  EXPECT_EQ(inflate_xz(bytes_of(kXz), "f"), "1,2,0\n3,4,1\n");
  EXPECT_EQ(inflate_xz(bytes_of(kXz + kXz), "f"), "1,2,0\n3,4,1\n1,2,0\n3,4,1\n");
  for (std::size_t length = 6; length < kXz.size(); ++length) {
    const std::string part = kXz.substr(0, length);
    expect_contains(data_error([&] { inflate_xz(bytes_of(part), "f.xz"); }), "\"f.xz\"");
  }
  for (std::size_t at = 0; at < kXz.size(); ++at) {
    std::string changed = kXz;
    changed[at] = static_cast<char>(changed[at] ^ 16);
    EXPECT_THROW(inflate_xz(bytes_of(changed), "f.xz"), Error) << at;
  }
}

TEST(Gzip, TruncatedOrChangedIsAnError) {
  for (std::size_t length = 3; length < kHello.size(); ++length) {
    const std::string part = kHello.substr(0, length);
    expect_contains(data_error([&] { inflate_gzip(bytes_of(part), "f.gz"); }), "\"f.gz\"");
  }
  std::string changed = kHello;
  changed[changed.size() - 6] ^= 1;  // the checksum
  expect_contains(data_error([&] { inflate_gzip(bytes_of(changed), "f.gz"); }), "damaged");
  const std::string longer = kHello + "more";
  expect_contains(data_error([&] { inflate_gzip(bytes_of(longer), "f.gz"); }), "its last 4 of");
}

TEST(InflateRaw, GivesExactlyTheBytesAskedFor) {
  const auto inflate = [](std::size_t size) {
    std::string out(size, '\0');
    inflate_raw(bytes_of(kHelloRaw), std::as_writable_bytes(std::span(out)), "entry");
    return out;
  };
  EXPECT_EQ(inflate(18), "hello hello hello\n");
  expect_contains(data_error([&] { inflate(17); }), "more than its 17 bytes");
  expect_contains(data_error([&] { inflate(19); }), "18 of 19 bytes");
}

TEST(ByteOrder, BothWays) {
  const std::string bytes = "\x01\x02\x03";
  EXPECT_EQ(little_endian(bytes_of(bytes)), 0x030201u);
  EXPECT_EQ(big_endian(bytes_of(bytes)), 0x010203u);
  std::string swapped = "abcdef";
  swap_bytes(std::as_writable_bytes(std::span(swapped)), 2);
  EXPECT_EQ(swapped, "badcfe");
}

using FileBytesFiles = DataFiles;

TEST_F(FileBytesFiles, OpensFilesAndSaysWhyNot) {
  EXPECT_EQ(FileBytes::open(write("a", "text")).text(), "text");
  EXPECT_EQ(FileBytes::open(write("empty", "")).size(), 0u);
  EXPECT_EQ(FileBytes::open_inflated(write("a.gz", kHello)).text(), "hello hello hello\n");
  expect_contains(data_error([&] { FileBytes::open(path("absent")); }), "No such file");
  expect_contains(data_error([&] { FileBytes::open(directory()); }), "is a directory");
}

TEST_F(FileBytesFiles, ASliceKeepsTheFileAlive) {
  FileBytes part;
  {
    const FileBytes whole = FileBytes::open(write("a", "abcdef"));
    part = whole.slice(2, 3);
  }
  EXPECT_EQ(part.text(), "cde");
}

}  // namespace
}  // namespace pipetrain
