// Megatron-LM's indexed data set: PREFIX.bin holds tokens, PREFIX.idx where each sequence begins:
// "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences, u64 documents, i32 lengths[sequences],
// i64 byte pointers[sequences], i64 documents[documents], all little-endian.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "data/rows/element.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kIndexHeader = 9 + 8 + 1 + 8 + 8;

DType dtype_of_code(std::uint64_t code) {
  constexpr DType kTypes[] = {DType::kUndefined, DType::kUint8,   DType::kInt8,
                              DType::kInt16,     DType::kInt32,   DType::kInt64,
                              DType::kFloat64,   DType::kFloat32, DType::kUint16};
  return code < std::size(kTypes) ? kTypes[code] : DType::kUndefined;
}

// Copied only if the sequences do not lie one after the other.
TokenShard read_pair(const fs::path& index_path, std::size_t& sequences) {
  const std::string index_file = index_path.string();
  fs::path data_path = index_path;
  data_path.replace_extension(".bin");
  const FileBytes index = FileBytes::open(index_file);
  const auto bytes = index.bytes();
  const std::string shown = printable(index_file);
  PT_CHECK(is_megatron_index(bytes), kData, "\"{}\" is not a Megatron index", shown);
  PT_CHECK(bytes.size() >= kIndexHeader, kData, "\"{}\" is truncated", shown);
  const std::uint64_t version = little_endian(bytes.subspan(9, 8));
  PT_CHECK(version == 1, kData, "\"{}\" has the unsupported version {}", shown, version);
  TokenShard out;
  out.file = data_path.string();
  out.dtype = dtype_of_code(little_endian(bytes.subspan(17, 1)));
  PT_CHECK(out.dtype != DType::kUndefined && !is_float(out.dtype), kData,
           "\"{}\" has the unsupported token type {}", shown, little_endian(bytes.subspan(17, 1)));
  const std::uint64_t count = little_endian(bytes.subspan(18, 8));
  const std::uint64_t documents = little_endian(bytes.subspan(26, 8));
  const std::uint64_t rest = bytes.size() - kIndexHeader;
  PT_CHECK(count <= rest / 12 && documents <= (rest - 12 * count) / 8, kData,
           "\"{}\" is a truncated or damaged index: {} sequences and {} documents do not fit",
           shown, count, documents);
  sequences = count;
  const auto lengths = bytes.subspan(kIndexHeader, 4 * count);
  const auto pointers = bytes.subspan(kIndexHeader + 4 * count, 8 * count);
  const FileBytes content = FileBytes::open(out.file);
  const std::size_t size = size_of(out.dtype);
  std::uint64_t tokens = 0;
  bool in_order = true;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t length = little_endian(lengths.subspan(4 * i, 4));
    const std::uint64_t begin = little_endian(pointers.subspan(8 * i, 8));
    PT_CHECK(begin <= content.size() && length <= (content.size() - begin) / size, kData,
             "\"{}\" is damaged: sequence {} of {} tokens at byte {} lies outside of \"{}\"", shown,
             i, length, begin, printable(out.file));
    in_order &= begin == tokens * size;
    tokens += length;
    PT_CHECK(tokens <= content.size() / size, kData,
             "\"{}\" is damaged: sequence {} overlaps with others", shown, i);
  }
  if (in_order) {
    out.content = content.slice(0, tokens * size);
  } else {
    std::string copied;
    copied.reserve(tokens * size);
    for (std::uint64_t i = 0; i < count; ++i) {
      copied += content.text().substr(little_endian(pointers.subspan(8 * i, 8)),
                                      little_endian(lengths.subspan(4 * i, 4)) * size);
    }
    out.content = FileBytes(std::move(copied));
  }
  const double least = range_of(out.content.bytes().data(), out.dtype, tokens).low;
  PT_CHECK(least >= 0, kData, "\"{}\" has a negative token, {:.0f}", printable(out.file), least);
  return out;
}

}  // namespace

bool is_megatron_index(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.starts_with(kIndexMagic);
}

RawData read_megatron(const std::string& path) {
  RawData out{path, "Megatron tokens", {}, {}, {}};
  std::vector<std::string> indices;
  if (fs::is_directory(path)) {
    for (const std::string& file : list_files(path)) {
      if (file.ends_with(".idx")) indices.push_back(file);
    }
  } else {
    for (const std::string& file : list_files(path)) {
      const std::string index = fs::path(file).replace_extension(".idx").string();
      if (std::ranges::find(indices, index) == indices.end()) indices.push_back(index);
    }
  }
  PT_CHECK(!indices.empty(), kData, "\"{}\" has no *.idx", printable(path));
  std::vector<TokenShard> train, validation;
  std::size_t all = 0;
  for (const std::string& index : indices) {
    std::size_t sequences = 0;
    TokenShard shard = read_pair(index, sequences);
    all += sequences;
    const bool other = indices.size() > 1 && names_other_part(index);
    (other ? validation : train).push_back(std::move(shard));
  }
  if (train.empty()) std::swap(train, validation);
  out.format = fmt::format("Megatron tokens, {}", name_of(train.front().dtype));
  out.notes.push_back(fmt::format("{} sequences, read as one stream", all));
  const auto to_split = [](std::vector<TokenShard> shards) {
    return RawSplit{{}, std::make_shared<const std::vector<TokenShard>>(std::move(shards))};
  };
  out.train = to_split(std::move(train));
  if (!validation.empty()) out.validation = to_split(std::move(validation));
  return out;
}

}  // namespace pipetrain
