// Data files of every format.
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "base/checksum.h"
#include "base/error.h"
#include "data/files/file_bytes.h"
#include "data/files/npz_writer.h"
#include "data/images/image.h"
#include "data/loading/open_data.h"
#include "data/rows/row_source.h"
#include "fuzz/inputs.h"
#include "support/data_files.h"
#include "support/image_bytes.h"
#include "support/temporary_directory.h"

namespace pipetrain::fuzz {
namespace {

const TemporaryDirectory& directory() {
  static const TemporaryDirectory one;
  return one;
}

void read_array(const HostTensor& tensor) {
  // Every byte can be read.
  if (tensor) crc32c({static_cast<const std::byte*>(tensor.view().data), tensor.type().bytes()});
}

void read_split(const RawSplit& split) {
  for (const RawColumn& column : split.columns) {
    read_array(column.values);
    const std::size_t rows = column.rows();
    if (rows > 0) column.locate(rows - 1);
    for (std::size_t row = 0; column.source && row < std::min<std::size_t>(rows, 8); ++row)
      column.source->check(row);
  }
  if (!split.shards) return;
  for (const TokenShard& shard : *split.shards) {
    for (std::size_t t = 0; t < std::min<std::size_t>(shard.tokens(), 100); ++t) shard.token(t);
  }
}

/// Reads a file of a format, which may be refused as bad data.
void read_format(const char* format, const std::string& name, std::string_view bytes) {
  put_file(directory() / name, bytes);
  try {
    DataOptions options;
    options.format = format;
    const RawData raw = read_source((directory() / name).string(), options);
    read_split(raw.train);
    read_split(raw.validation);
    describe(raw);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;
  }
}

template <const char* kFormat, const char* kName>
void read_as(std::string_view bytes) {
  read_format(kFormat, kName, bytes);
}

HostTensor some_array() {
  HostTensor out(TensorType{DType::kFloat32, Shape{4, 3}});
  float next = 0;
  for (float& x : out.span<float>()) x = next++;
  return out;
}

std::string npy_file() {
  const HostTensor array = some_array();
  return npy_header(array.type()) +
         std::string(static_cast<const char*>(array.view().data), array.type().bytes());
}
std::vector<std::string> npy_files() {
  return {npy_file(),
          std::string("\x93NUMPY\x02\x00", 8) + little(80, 4) +
              std::string("{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }") +
              std::string(21, ' ') + "\n" + std::string(12, '\1')};
}

std::vector<std::string> npz_files() {
  NpzWriter writer(directory() / "seed.npz");
  const HostTensor x = some_array();
  HostTensor y(TensorType{DType::kInt64, Shape{4}});
  writer.add("x_train", x.view());
  writer.add("y_train", y.view());
  writer.commit();
  return {get_file(directory() / "seed.npz")};
}

/// A number of so many bytes; 0 where they are not all there.
std::uint64_t number_at(const std::string& bytes, std::uint64_t at, std::size_t size) {
  std::uint64_t value = 0;
  if (at <= bytes.size() && size <= bytes.size() - at) std::memcpy(&value, bytes.data() + at, size);
  return value;
}

/// Puts the CRC-32 of members that lie stored in a zip archive right, in its directory, where the
/// reader takes it from. Sizes and places stand there as NpzWriter writes them.
void mutate_zip(std::string& bytes, Random& random) {
  constexpr std::uint64_t kIn64 = 0xffffffff;  // the number is in the ZIP64 field behind the name
  mutate_bytes(bytes, random);
  if (random.below(8) == 0) return;
  for (std::size_t at = bytes.find("PK\1\2"); at != std::string::npos;
       at = bytes.find("PK\1\2", at + 4)) {
    if (bytes.size() - at < 46) break;
    const std::uint64_t extra = at + 46 + number_at(bytes, at + 28, 2);
    std::uint64_t size = number_at(bytes, at + 20, 4), member = number_at(bytes, at + 42, 4);
    if (size == kIn64) size = number_at(bytes, extra + 12, 8);
    if (member == kIn64) member = number_at(bytes, extra + 20, 8);
    if (member > bytes.size()) continue;
    const std::uint64_t begin =
        member + 30 + number_at(bytes, member + 26, 2) + number_at(bytes, member + 28, 2);
    if (begin > bytes.size() || size > bytes.size() - begin) continue;
    const auto crc =
        ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data() + begin), static_cast<uInt>(size));
    bytes.replace(at + 16, 4, little(crc, 4));
  }
}

std::vector<std::string> csv_files() {
  return {"a,b,label\n1,2,cat\n3,4.5,\"dog, big\"\n# a comment\n-1e3,0,cat\n", "1\t2\t0\n3\t4\t1\n",
          "1;2;3\r\n4;5;6\r\n"};
}

std::vector<std::string> idx_files() {
  return {
      std::string("\0\0\x08\x03", 4) + big(2, 4) + big(2, 4) + big(3, 4) + std::string(12, '\7'),
      std::string("\0\0\x0d\x01", 4) + big(3, 4) + std::string(12, '\0')};
}

std::vector<std::string> cifar_files() { return {std::string(3073 * 2, '\3')}; }

std::vector<std::string> token_files() {
  return {little(20240520, 4) + little(1, 4) + little(6, 4) + std::string(1012, '\0') +
              std::string(12, '\1'),
          std::string("\1\0\2\0\3\0\4\0", 8)};
}

std::string tar_member(const std::string& name, const std::string& content) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  header.replace(124, 11, fmt::format("{:011o}", content.size()));
  header[156] = '0';
  header.replace(257, 5, "ustar");
  header.replace(263, 2, "00");
  std::string padded = content;
  padded.resize((content.size() + 511) / 512 * 512);
  return header + padded;
}

/// The checksums of all headers of a tar archive as they should be.
void mend_tar(std::string& bytes) {
  for (std::size_t at = 0; at + 512 <= bytes.size();) {
    if (bytes[at] == '\0') break;
    bytes.replace(at + 148, 8, 8, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[at + i]);
    bytes.replace(at + 148, 8, fmt::format("{:06o}", sum & 0777777) + std::string("\0 ", 2));
    const std::size_t size = std::strtoul(bytes.substr(at + 124, 11).c_str(), nullptr, 8);
    if (size > bytes.size()) break;
    at += 512 + (size + 511) / 512 * 512;
  }
}

std::vector<std::string> tar_files() {
  std::string tar = tar_member("000.png", kPng) + tar_member("000.cls", "3") +
                    tar_member("001.png", kPng) + tar_member("001.cls", "1");
  std::string json =
      tar_member("a.npy", npy_file()) + tar_member("a.json", R"({"label": 2, "w": [1, 2]})");
  for (std::string* one : {&tar, &json}) {
    one->append(1024, '\0');
    mend_tar(*one);
  }
  return {tar, json};
}

void mutate_tar(std::string& bytes, Random& random) {
  mutate_bytes(bytes, random);
  if (random.below(8) != 0) mend_tar(bytes);
}

std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes.data(), bytes.size()))), 15) + 0xa282ead8U;
}

std::string tf_record(const std::string& content) {
  const std::string length = little(content.size(), 8);
  return length + little(masked_crc(length), 4) + content + little(masked_crc(content), 4);
}

std::string field(int number, const std::string& content) {
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         std::string(1, static_cast<char>(content.size())) + content;
}

std::vector<std::string> tf_records() {
  // Example { features { feature { "x": float_list, "label": int64_list } } }
  const std::string floats = field(2, field(1, std::string(12, '\0')));
  const std::string label = field(3, field(1, "\5"));
  const std::string x = field(1, field(1, "x") + field(2, floats));
  const std::string y = field(1, field(1, "label") + field(2, label));
  const std::string record = tf_record(field(1, x + y));
  return {record + record};
}

void mutate_tf_records(std::string& bytes, Random& random) {
  mutate_bytes(bytes, random);
  if (random.below(8) == 0) return;
  for (std::size_t at = 0; at + 16 <= bytes.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, 8);
    bytes.replace(at + 8, 4, little(masked_crc(bytes.substr(at, 8)), 4));
    if (size > bytes.size() - at - 16) break;
    bytes.replace(at + 12 + size, 4, little(masked_crc(bytes.substr(at + 12, size)), 4));
    at += 16 + size;
  }
}

std::vector<std::string> jsonl_files() {
  return {"{\"x\": [1, 2.5, 3], \"label\": \"cat\"}\n{\"x\": [4, 5, 6], \"label\": \"dog\"}\n",
          "{\"tokens\": [1, 2, 3]}\n{\"tokens\": [4, 5]}\n", "{\"a\": 1, \"b\": true, \"y\": 0}\n"};
}

std::vector<std::string> libsvm_files() {
  return {"1 1:0.5 3:2\n-1 2:1e3 # comment\n+1 qid:3 1:-1 9:4\n"};
}

std::vector<std::string> megatron_files() {
  put_file(directory() / "mega.bin", std::string(64, '\1'));
  return {std::string("MMIDIDX\0\0", 9) + little(1, 8) + std::string(1, '\x08') + little(2, 8) +
          little(3, 8) + little(5, 4) + little(3, 4) + little(0, 8) + little(10, 8) + little(0, 8) +
          little(1, 8) + little(2, 8)};
}

std::vector<std::string> images() {
  return {kPng,
          kBmp,
          kGreyJpeg,
          kColourJpeg,
          "P6\n2 1\n255\nabcdef",
          "P5 3 2 255\nabcdef",
          "P3\n1 1\n255\n1 2 3\n"};
}

/// Puts the checksums of a PNG's chunks right.
void mutate_image(std::string& bytes, Random& random) {
  mutate_bytes(bytes, random);
  if (!bytes.starts_with("\x89PNG") || random.below(8) == 0) return;
  for (std::size_t at = 8; at + 12 <= bytes.size();) {
    std::uint64_t size = 0;
    for (std::size_t i = 0; i < 4; ++i)
      size = size << 8 | static_cast<unsigned char>(bytes[at + i]);
    if (size > bytes.size() - at - 12) break;
    const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data() + at + 4),
                             static_cast<uInt>(size + 4));
    bytes.replace(at + 8 + size, 4, big(crc, 4));
    at += 12 + size;
  }
}

void read_an_image(std::string_view bytes) {
  try {
    decode_image(std::as_bytes(std::span(bytes.data(), bytes.size())), "image", 0);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;
  }
}

/// Lets zlib read `in` and fill `out`.
void set_buffers(z_stream& stream, const std::string& in, std::string& out) {
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
}

std::string gzip_member(const std::string& text) {
  z_stream stream{};
  ::deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(::deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  set_buffers(stream, text, out);
  ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::vector<std::string> gzip_files() {
  const std::string out = gzip_member(csv_files()[0]);
  return {out, out + out};
}

/// Half of the time changes what the first member inflates to: changed members have wrong
/// checksums.
void mutate_gzip(std::string& bytes, Random& random) {
  if (random.below(2) == 0) return mutate_bytes(bytes, random);
  std::string text(std::size_t{1} << 16, '\0');
  z_stream stream{};
  ::inflateInit2(&stream, 15 + 16);
  set_buffers(stream, bytes, text);
  const int result = ::inflate(&stream, Z_FINISH);
  text.resize(stream.total_out);
  const std::string rest = bytes.substr(stream.total_in);
  ::inflateEnd(&stream);
  if (result != Z_STREAM_END) return mutate_bytes(bytes, random);
  mutate_text(text, random);
  bytes = gzip_member(text) + rest;
}

constexpr char kNpy[] = "npy", kNpyName[] = "a.npy", kNpz[] = "npz", kNpzName[] = "a.npz",
               kCsv[] = "csv", kCsvName[] = "a.csv", kIdx[] = "idx", kIdxName[] = "a-idx3-ubyte",
               kCifar[] = "cifar10", kCifarName[] = "a.bin", kTokens[] = "tokens",
               kTokensName[] = "t.bin", kTar[] = "webdataset", kTarName[] = "a.tar",
               kTf[] = "tfrecord", kTfName[] = "a.tfrecord", kJsonl[] = "jsonl",
               kJsonlName[] = "a.jsonl", kSvm[] = "libsvm", kSvmName[] = "a.svm",
               kMegatron[] = "megatron", kMegatronName[] = "mega.idx", kAny[] = "auto",
               kAnyName[] = "a.gz", kText[] = "text", kTextName[] = "a.txt";

}  // namespace

std::vector<Input> data_inputs() {
  return {{"npy", npy_files, mutate_text, read_as<kNpy, kNpyName>},
          {"npz", npz_files, mutate_zip, read_as<kNpz, kNpzName>},
          {"csv", csv_files, mutate_text, read_as<kCsv, kCsvName>},
          {"idx", idx_files, mutate_bytes, read_as<kIdx, kIdxName>},
          {"cifar", cifar_files, mutate_bytes, read_as<kCifar, kCifarName>},
          {"tokens", token_files, mutate_bytes, read_as<kTokens, kTokensName>},
          {"webdataset", tar_files, mutate_tar, read_as<kTar, kTarName>},
          {"tfrecord", tf_records, mutate_tf_records, read_as<kTf, kTfName>},
          {"jsonl", jsonl_files, mutate_text, read_as<kJsonl, kJsonlName>},
          {"libsvm", libsvm_files, mutate_text, read_as<kSvm, kSvmName>},
          {"megatron", megatron_files, mutate_bytes, read_as<kMegatron, kMegatronName>},
          {"text", csv_files, mutate_bytes, read_as<kText, kTextName>},
          {"gzip", gzip_files, mutate_gzip, read_as<kAny, kAnyName>},
          {"image", images, mutate_image, read_an_image}};
}

}  // namespace pipetrain::fuzz
