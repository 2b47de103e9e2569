// Arrays written by NumPy 2, byte for byte.
#include <gtest/gtest.h>
#include <zlib.h>

#include "data/files/npz_writer.h"
#include "data/files/zip_archive.h"
#include "data/rows/readers.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

// np.savez(f, x=np.arange(6, dtype=np.float32).reshape(2, 3) / 4, y=np.array([1, 0]))
constexpr const char* kStored =
    "504b03042d0000000000000021000a9c00a4ffffffffffffffff05001400782e6e707901001000980000000000"
    "00009800000000000000934e554d5059010076007b276465736372273a20273c6634272c2027666f727472616e"
    "5f6f72646572273a2046616c73652c20277368617065273a2028322c2033292c207d2020202020202020202020"
    "202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020"
    "20200a000000000000803e0000003f0000403f0000803f0000a03f504b03042d00000000000000210071fb39ab"
    "ffffffffffffffff05001400792e6e70790100100090000000000000009000000000000000934e554d50590100"
    "76007b276465736372273a20273c6938272c2027666f727472616e5f6f72646572273a2046616c73652c202773"
    "68617065273a2028322c292c207d20202020202020202020202020202020202020202020202020202020202020"
    "20202020202020202020202020202020202020202020202020202020200a010000000000000000000000000000"
    "00504b01022d032d0000000000000021000a9c00a4980000009800000005000000000000000000000080010000"
    "0000782e6e7079504b01022d032d00000000000000210071fb39ab900000009000000005000000000000000000"
    "00008001cf000000792e6e7079504b0506000000000200020066000000960100000000";

// np.savez_compressed: x_train uint8 arange(24) (2, 3, 4), y_train int32 [3, 1], x_test ones
// (1, 3, 4), y_test [2]
constexpr const char* kDeflated =
    "504b03042d00000008000000210044ad5782ffffffffffffffff0b001400785f747261696e2e6e707901001000"
    "980000000000000061000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a05e536aa8aea3a09e"
    "965f54529498179f5f94920a12774bcc294e058a17672416a402f91a463a0ac63a0a269a3a0ab50ae4012e0646"
    "2666165636760e4e2e6e1e5e3e7e014121611151317100504b03042d00000008000000210098513a7dffffffff"
    "ffffffff0b001400795f747261696e2e6e70790100100088000000000000004b000000000000009bec17ea1b10"
    "c9c850c650ad9e925a9c5ca46ea5a06e9369a2aea3a09e965f54529498179f5f94920a12774bcc294e058a1767"
    "2416a402f91a463a9a3a0ab50a14002e6606060646200600504b03042d000000080000002100838a8f58ffffff"
    "ffffffffff0a001400785f746573742e6e7079010010008c000000000000004c000000000000009bec17ea1b10"
    "c9c850c650ad9e925a9c5ca46ea5a05e536aa8aea3a09e965f54529498179f5f94920a12774bcc294e058a1767"
    "2416a402f91a863a0ac63a0a269a3a0ab50ae4012e46240000504b03042d0000000800000021004fb7a75dffff"
    "ffffffffffff0a001400795f746573742e6e707901001000840000000000000048000000000000009bec17ea1b"
    "10c9c850c650ad9e925a9c5ca46ea5a06e9369a2aea3a09e965f54529498179f5f94920a12774bcc294e058a17"
    "672416a402f91a863a9a3a0ab50a14002e2606060600504b01022d032d00000008000000210044ad5782610000"
    "00980000000b0000000000000000000000800100000000785f747261696e2e6e7079504b01022d032d00000008"
    "000000210098513a7d4b000000880000000b000000000000000000000080019e000000795f747261696e2e6e70"
    "79504b01022d032d000000080000002100838a8f584c0000008c0000000a000000000000000000000080012601"
    "0000785f746573742e6e7079504b01022d032d0000000800000021004fb7a75d48000000840000000a00000000"
    "000000000000008001ae010000795f746573742e6e7079504b05060000000004000400e2000000320200000000";

// np.save of float16 [[1, 2, 3], [4, 5, 6.5]] in Fortran order, and of '>i4' [1, -2, 70000]
constexpr const char* kFortranHalf =
    "934e554d5059010076007b276465736372273a20273c6632272c2027666f727472616e5f6f72646572273a2054"
    "7275652c20277368617065273a2028322c2033292c207d20202020202020202020202020202020202020202020"
    "202020202020202020202020202020202020202020202020202020202020202020202020200a003c0044004000"
    "4500428046";
constexpr const char* kBigEndian =
    "934e554d5059010076007b276465736372273a20273e6934272c2027666f727472616e5f6f72646572273a2046"
    "616c73652c20277368617065273a2028332c292c207d2020202020202020202020202020202020202020202020"
    "202020202020202020202020202020202020202020202020202020202020202020202020200a00000001ffffff"
    "fe00011170";

using Doubles = std::vector<double>;

std::string npy(const std::string& header, const std::string& data) {
  return "\x93NUMPY" + std::string("\x01\x00", 2) + little(header.size(), 2) + header + data;
}
std::string simple(const std::string& descr, const std::string& shape, const std::string& data) {
  return npy("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n",
             data);
}
HostTensor parse_npz(const std::string& bytes) {
  return parse_npy(std::as_bytes(std::span(bytes)), "a.npy");
}

void read_all(const std::string& bytes) {
  const ZipArchive archive(FileBytes(bytes), "a.npz");
  for (const ZipEntry& entry : archive.entries()) {
    const FileBytes content = archive.read(entry);
    parse_npy(content.bytes(), entry.name);
  }
}

using Npz = DataFiles;

TEST_F(Npz, StoredArchive) {
  const RawData raw = read_npz(write("a.npz", from_hex(kStored)));
  ASSERT_EQ(raw.train.columns.size(), 2u);
  const RawColumn& x = raw.train.columns[0];
  EXPECT_EQ(x.name, "x");
  EXPECT_EQ(x.values.type().text(), "float32 (2, 3)");
  EXPECT_EQ(x.values.to_doubles(), (Doubles{0, 0.25, 0.5, 0.75, 1, 1.25}));
  const RawColumn& y = raw.train.columns[1];
  EXPECT_EQ(y.role, ColumnRole::kLabel);
  EXPECT_EQ(y.values.dtype(), DType::kInt64);
  EXPECT_EQ(y.values.to_doubles(), (Doubles{1, 0}));
  EXPECT_TRUE(raw.validation.empty());
}

TEST_F(Npz, DeflatedArchiveWithTrainAndTestParts) {
  const RawData raw = read_npz(write("a.npz", from_hex(kDeflated)));
  ASSERT_EQ(raw.train.columns.size(), 2u);
  Doubles want(24);
  for (int i = 0; i < 24; ++i) want[i] = i;
  EXPECT_EQ(raw.train.columns[0].values.to_doubles(), want);
  EXPECT_EQ(raw.train.columns[0].values.shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(raw.train.columns[1].values.to_doubles(), (Doubles{3, 1}));
  ASSERT_EQ(raw.validation.columns.size(), 2u);
  EXPECT_EQ(raw.validation.columns[0].name, "x");
  EXPECT_EQ(raw.validation.columns[0].values.to_doubles(), Doubles(12, 1));
  EXPECT_EQ(raw.validation.columns[1].values.to_doubles(), (Doubles{2}));
}

TEST_F(Npz, TheValidationPartComesBeforeTheTestPart) {
  NpzWriter writer(path("v.npz"));
  const std::pair<const char*, float> arrays[] = {{"x_train", 1}, {"x_test", 2}, {"x_val", 3}};
  for (const auto& [key, value] : arrays) {
    const std::vector<float> values = {value};
    writer.add(key, HostTensor::of<float>(Shape{1}, values).view());
  }
  writer.commit();
  const RawData raw = read_npz(path("v.npz"));
  EXPECT_EQ(raw.train.columns.at(0).values.to_doubles(), Doubles{1});
  EXPECT_EQ(raw.validation.columns.at(0).values.to_doubles(), Doubles{3});
}

// As `data convert` writes the features of a TFRecord file.
TEST_F(Npz, TheLastPartOfANameTellsLabels) {
  EXPECT_EQ(role_of_name("image/class/label"), ColumnRole::kLabel);
  EXPECT_EQ(role_of_name("label/height"), ColumnRole::kUnknown);
  NpzWriter writer(path("a.npz"));
  const std::vector<std::int64_t> values = {1, 0};
  for (const char* key : {"image/height", "image/class/label"})
    writer.add(key, HostTensor::of<std::int64_t>(Shape{2}, values).view());
  writer.commit();
  const RawData raw = read_npz(path("a.npz"));
  ASSERT_EQ(raw.train.columns.size(), 2u);
  EXPECT_EQ(raw.train.columns[0].role, ColumnRole::kUnknown);
  EXPECT_EQ(raw.train.columns[1].name, "image/class/label");
  EXPECT_EQ(raw.train.columns[1].role, ColumnRole::kLabel);
}

// Python's zipfile, and so NumPy, takes other names for code page 437.
TEST_F(Npz, NamesInUtf8AreMarked) {
  const auto flags = [&](const std::string& name, const std::string& file_name) {
    NpzWriter writer(path(file_name));
    const std::vector<float> values = {1};
    writer.add(name, HostTensor::of<float>(Shape{1}, values).view());
    writer.commit();
    const FileBytes file = FileBytes::open(path(file_name));
    const std::string_view bytes = file.text();
    const std::string_view in_header = bytes.substr(6, 2);
    EXPECT_EQ(in_header, bytes.substr(bytes.find("PK\x01\x02") + 8, 2));
    return std::string(in_header);
  };
  EXPECT_EQ(flags("größe", "u.npz"), from_hex("0808"));
  EXPECT_EQ(flags("\xf6l", "l.npz"), from_hex("0800"));
}

TEST_F(Npz, EveryTruncationIsAnError) {
  const std::string whole = from_hex(kDeflated);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(data_error([&] { read_all(whole.substr(0, length)); }).empty()) << length;
  }
}

// Whatever one byte is changed to: the arrays, or an error; never anything else.
TEST_F(Npz, EveryChangedByteIsAnErrorOrHarmless) {
  for (const char* hex : {kStored, kDeflated}) {
    const std::string whole = from_hex(hex);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (const int flip : {0x01, 0x80, 0xff}) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ flip);
        try {
          read_all(changed);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
        }
      }
    }
  }
}

TEST_F(Npz, ChangedContentIsFoundByItsChecksum) {
  std::string bytes = from_hex(kStored);
  bytes[bytes.find(from_hex("0000803e"))] ^= 1;
  const std::string file = write("a.npz", bytes);
  expect_contains(data_error([&] { read_npz(file); }), "checksum");
}

TEST_F(Npz, AnEntryThatClaimsToInflateTooFarIsRefused) {
  std::string bytes = from_hex(kDeflated);
  const std::size_t entry = bytes.find("PK\x01\x02");
  bytes.replace(entry + 24, 4, little(0x7fffffff, 4));
  const std::string file = write("a.npz", bytes);
  expect_contains(data_error([&] { read_npz(file); }), "cannot inflate to 2147483647");
}

TEST_F(Npz, EntriesThatShareTheirBytesAreRefused) {
  std::string bytes = from_hex(kStored);
  const std::size_t second = bytes.find("PK\x01\x02", bytes.find("PK\x01\x02") + 1);
  // The directory's entry of y is as long as the file, and begins where x does.
  bytes.replace(second + 20, 8, little(bytes.size(), 4) + little(bytes.size(), 4));
  bytes.replace(second + 42, 4, little(0, 4));
  expect_contains(data_error([&] { read_npz(write("a.npz", bytes)); }), "its entries overlap");
}

TEST_F(Npz, OneFileIsRead) {
  write("a.npy", simple("|u1", "(1, 2)", "ab"));
  EXPECT_EQ(read_npy(path("?.npy")).train.columns.size(), 1u);
  write("b.npy", simple("|u1", "(1, 2)", "ab"));
  expect_contains(data_error([&] { read_npy(path("?.npy")); }, ErrorKind::kUsage),
                  "are 2 files, but `format` npy reads one file");
  write("a.csv", "1,2\n"), write("b.csv", "1,2\n");
  expect_contains(data_error([&] { read_csv(path("*.csv"), {}); }, ErrorKind::kUsage),
                  "are 2 files, but `format` csv reads one file");
}

TEST_F(Npz, ObjectArraysAndSingleValuesAreLeftOut) {
  const auto stored = [](const std::string& name, const std::string& data, std::string& local,
                         std::string& directory) {
    std::uint32_t checksum = 0xffffffff;
    for (const char c : data) {
      checksum ^= static_cast<std::uint8_t>(c);
      for (int k = 0; k < 8; ++k) checksum = checksum >> 1 ^ (checksum & 1 ? 0xedb88320 : 0);
    }
    const std::string tail = little(~checksum, 4) + little(data.size(), 4) +
                             little(data.size(), 4) + little(name.size(), 2) + little(0, 2);
    const std::string offset = little(local.size(), 4);
    local += "PK\x03\x04" + little(20, 2) + little(0, 8) + tail + name + data;
    directory += "PK\x01\x02" + little(20, 4) + little(0, 8) + tail + little(0, 10) + offset + name;
  };
  std::string local, directory;
  stored("y.npy", simple("|S1", "(2,)", "ba"), local, directory);
  stored("meta.npy", simple("|O", "(1,)", "x"), local, directory);
  stored("scale.npy", simple("<f4", "()", std::string(4, '\0')), local, directory);
  stored("x.npy", simple("|u1", "(2, 1)", "\x05\x06"), local, directory);
  const std::string end = "PK\x05\x06" + little(0, 4) + little(4, 2) + little(4, 2) +
                          little(directory.size(), 4) + little(local.size(), 4) + little(0, 2);
  const RawData raw = read_npz(write("a.npz", local + directory + end));
  ASSERT_EQ(raw.train.columns.size(), 2u);
  // Strings are labels.
  EXPECT_EQ(raw.train.columns[0].values.to_doubles(), (Doubles{1, 0}));
  EXPECT_EQ(raw.train.columns[0].class_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(raw.train.columns[1].values.to_doubles(), (Doubles{5, 6}));
  EXPECT_EQ(raw.notes.size(), 2u);
}

// As numpy.array(["b", "äb", "€"]) and numpy.array([b"b", b"ab"]) are saved.
TEST(Npy, StringsAreWords) {
  const auto words = [](const std::string& bytes) {
    return parse_npy_words(std::as_bytes(std::span(bytes)), "a.npy");
  };
  using Words = std::vector<std::string>;
  const std::string wide = little('b', 4) + little(0, 4) + little(0xe4, 4) + little('b', 4) +
                           little(0x20ac, 4) + little(0, 4);
  EXPECT_EQ(words(simple("<U2", "(3,)", wide)), (Words{"b", "äb", "€"}));
  EXPECT_EQ(words(simple(">U1", "(1,)", big(0x1f600, 4))), (Words{"😀"}));
  EXPECT_EQ(words(simple("|S2", "(2,)", std::string("b\0ab", 4))), (Words{"b", "ab"}));
  EXPECT_TRUE(words(simple("<i4", "(1,)", little(1, 4))).empty());
  EXPECT_TRUE(words(simple("<U1", "(1, 1)", little('b', 4))).empty());
  expect_contains(data_error([&] { words(simple("<U2", "(3,)", little(1, 4))); }), "truncated");
  expect_contains(data_error([&] { words(simple("<U1", "(1,)", little(0xffffffff, 4))); }),
                  "no text");
}

TEST(Npy, FortranOrderAndHalfPrecision) {
  const HostTensor got = parse_npz(from_hex(kFortranHalf));
  EXPECT_EQ(got.type().text(), "float16 (2, 3)");
  EXPECT_EQ(got.to_doubles(), (Doubles{1, 2, 3, 4, 5, 6.5}));
}

TEST(Npy, FortranOrderOfThreeAxes) {
  // Element (i, j, k) holds 100 i + 10 j + k; the first index runs fastest in the file.
  std::string data;
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) data += static_cast<char>(100 * i + 10 * j + k);
    }
  }
  const HostTensor got =
      parse_npz(npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }", data));
  Doubles want;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) want.push_back(100 * i + 10 * j + k);
    }
  }
  EXPECT_EQ(got.to_doubles(), want);
}

TEST(Npy, BigEndian) {
  EXPECT_EQ(parse_npz(from_hex(kBigEndian)).to_doubles(), (Doubles{1, -2, 70000}));
}

TEST(Npy, EveryType) {
  EXPECT_EQ(parse_npz(simple("|b1", "(3,)", std::string("\x00\x01\x07", 3))).to_doubles(),
            (Doubles{0, 1, 1}));
  EXPECT_EQ(parse_npz(simple("|i1", "(1,)", "\xff")).to_doubles(), Doubles{-1});
  EXPECT_EQ(parse_npz(simple("<i2", "(1,)", little(0xfffe, 2))).to_doubles(), Doubles{-2});
  EXPECT_EQ(parse_npz(simple("<u2", "(1,)", little(65535, 2))).to_doubles(), Doubles{65535});
  EXPECT_EQ(parse_npz(simple("<u4", "(1,)", little(4294967295, 4))).to_doubles(),
            Doubles{4294967295});
  EXPECT_EQ(parse_npz(simple("<u8", "(1,)", little(1ull << 40, 8))).to_doubles(), Doubles{0x1p40});
  EXPECT_EQ(parse_npz(simple(">f8", "(1,)", big(0x3ff8000000000000, 8))).to_doubles(),
            Doubles{1.5});
  EXPECT_EQ(parse_npz(simple("<f4", "(0, 3)", "")).to_doubles(), Doubles{});
}

TEST(Npy, WrongHeadersAreErrors) {
  const auto error = [](const std::string& bytes) { return data_error([&] { parse_npz(bytes); }); };
  expect_contains(error("not an array"), "not a NumPy array");
  expect_contains(error(simple("<f4", "(3,)", std::string(8, '\0'))), "needs 12 bytes, it has 8");
  expect_contains(error(simple("<f4", "(1,)", std::string(8, '\0'))), "needs 4 bytes, it has 8");
  expect_contains(error(simple("<f4", "(4611686018427387904, 4)", "")), "impossible");
  expect_contains(error(simple("<f4", "(0, 4611686018427387904, 4)", "")), "impossible");
  expect_contains(error(simple("<f4", "(99999999999999999999,)", "")), "is malformed");
  expect_contains(error(simple("<f4", "(-1,)", "")), "is malformed");
  expect_contains(error(simple("<f4", "(3", "")), "is malformed");
  expect_contains(error(simple("<c8", "(1,)", std::string(8, '\0'))), "type \"<c8\"");
  expect_contains(error(npy("{'descr': [('a', '<f4')], 'shape': (1,)}", "")), "records");
  expect_contains(error(npy("{'shape': (1,)}", "")), "no type");
  expect_contains(error(npy("{'descr': '<f4", "")), "is malformed");
  expect_contains(error("\x93NUMPY" + std::string("\x09\x00", 2) + little(2, 4) + "{}"),
                  "version 9");
  expect_contains(error("\x93NUMPY" + std::string("\x02\x00", 2) + little(0xffffffff, 4) + "{}"),
                  "truncated");
}

TEST_F(Npz, LabelsBesideASingleArray) {
  write("y_train.npy", simple("<i4", "(1,)", little(7, 4)));
  const RawData raw = read_npy(write("x_train.npy", simple("|u1", "(1, 2)", "ab")));
  ASSERT_EQ(raw.train.columns.size(), 2u);
  EXPECT_EQ(raw.train.columns[1].role, ColumnRole::kLabel);
  EXPECT_EQ(raw.train.columns[1].values.to_doubles(), Doubles{7});
  write("labels.npy", simple("<i4", "(1,)", little(7, 4)));
  EXPECT_EQ(read_npy(write("mixed.npy", simple("|u1", "(1, 2)", "ab"))).train.columns.size(), 1u);
}

TEST_F(Npz, LabelsBesideASingleArrayMayBeStringsOrPacked) {
  write("y.npy", simple("|S1", "(2,)", "ba"));
  const RawData words = read_npy(write("x.npy", simple("|u1", "(2, 1)", "\x05\x06")));
  ASSERT_EQ(words.train.columns.size(), 2u);
  EXPECT_EQ(words.train.columns[1].class_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(words.train.columns[1].values.to_doubles(), (Doubles{1, 0}));
  const auto pack = [&](const std::string& name, const std::string& content) {
    gzFile file = ::gzopen(path(name).c_str(), "wb");
    ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    ::gzclose(file);
    return path(name);
  };
  std::filesystem::create_directories(path("d"));
  pack("d/y.npy.gz", simple("<i4", "(1,)", little(7, 4)));
  const RawData packed = read_npy(pack("d/x.npy.gz", simple("|u1", "(1, 1)", "a")));
  ASSERT_EQ(packed.train.columns.size(), 2u);
  EXPECT_EQ(packed.train.columns[0].name, "x");
  EXPECT_EQ(packed.train.columns[1].values.to_doubles(), Doubles{7});
  EXPECT_EQ(read_npy(path("d")).train.columns.size(), 2u);
}

TEST(PartName, ToldFromPrefixOrSuffix) {
  EXPECT_EQ(split_part_name("x_train").base, "x");
  EXPECT_EQ(split_part_name("x_train").part, SourcePart::kTrain);
  EXPECT_EQ(split_part_name("test_images").base, "images");
  EXPECT_EQ(split_part_name("test_images").part, SourcePart::kTest);
  EXPECT_EQ(split_part_name("y_valid").part, SourcePart::kValidation);
  EXPECT_EQ(split_part_name("input_ids").base, "input_ids");
  EXPECT_FALSE(split_part_name("latest").part);
  EXPECT_FALSE(split_part_name("train").part);
}

TEST(PartName, WordsInOtherNamesAreNoParts) {
  using Keys = std::vector<std::string>;
  const auto bases = [](const Keys& keys) {
    Keys out;
    for (const PartName& name : split_part_names(keys))
      out.push_back(name.base + (name.part ? " of a part" : ""));
    return out;
  };
  EXPECT_EQ(bases({"ids", "label", "valid_len"}), (Keys{"ids", "label", "valid_len"}));
  EXPECT_EQ(bases({"x", "x_test", "test_ids"}), (Keys{"x", "x of a part", "ids of a part"}));
  EXPECT_EQ(bases({"x_test", "y_test"}), (Keys{"x of a part", "y of a part"}));
  Keys many = {"x"};
  for (int i = 0; i < 5000; ++i) many.push_back(fmt::format("val_{}", i));
  EXPECT_EQ(bases(many), many);  // soon
}

TEST(PartName, FilesAreToldByWholeWords) {
  for (const char* name :
       {"val.jsonl", "d/x-val-001.tar", "c_test2.bin", "Test.tsv", "myTestData.bin",
        "validation-00001", "eval.tfrecord", "dev.jsonl", "c_dev_1.bin", "devset.tar"})
    EXPECT_TRUE(names_other_part(name)) << name;
  for (const char* name :
       {"latest.jsonl", "contest.bin", "interval.csv", "values", "test/a.bin", "devices.csv", ""})
    EXPECT_FALSE(names_other_part(name)) << name;
}

}  // namespace
}  // namespace pipetrain
