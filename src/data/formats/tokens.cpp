// Streams of token ids: llm.c's shards, nanoGPT's headerless files, and the bytes of a text.
#include <algorithm>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

// llm.c: 256 little-endian int32 (magic, version, token count, zeros), then the tokens.
constexpr std::size_t kHeaderBytes = 1024;
constexpr std::uint32_t kMagic16 = 20240520;
constexpr std::uint32_t kMagic32 = 20240801;

std::uint32_t word(std::span<const std::byte> bytes, std::size_t index) {
  return static_cast<std::uint32_t>(little_endian(bytes.subspan(4 * index, 4)));
}

// Ids below 65536 kept in four bytes have zeros in every other half word; 16-bit text has none.
DType guess_dtype(std::span<const std::byte> bytes) {
  const std::size_t words = std::min<std::size_t>(bytes.size() / 4, 4096);
  if (words == 0 || bytes.size() % 4 != 0) return DType::kUint16;
  std::size_t small = 0;
  for (std::size_t i = 0; i < words; ++i) small += word(bytes, i) < 1u << 18;
  return small == words ? DType::kUint32 : DType::kUint16;
}

TokenShard open_shard(const std::string& file, DType headerless_dtype) {
  TokenShard shard;
  shard.file = file;
  shard.content = FileBytes::open_inflated(file);
  const auto bytes = shard.content.bytes();
  if (!is_llmc_tokens(bytes)) {
    shard.dtype = headerless_dtype == DType::kUndefined ? guess_dtype(bytes) : headerless_dtype;
    PT_CHECK(!bytes.empty() && bytes.size() % size_of(shard.dtype) == 0, kData,
             "\"{}\" is not a file of {} tokens: it has {} bytes ({} chooses u16 or "
             "u32)",
             printable(file), name_of(shard.dtype), bytes.size(), setting("token-dtype"));
    return shard;
  }
  const std::uint32_t magic = word(bytes, 0), version = word(bytes, 1), count = word(bytes, 2);
  PT_CHECK(version == (magic == kMagic16 ? 1 : 7), kData,
           "\"{}\" is an llm.c token file of the unsupported version {}", printable(file), version);
  shard.dtype = magic == kMagic16 ? DType::kUint16 : DType::kUint32;
  shard.header_bytes = kHeaderBytes;
  const std::uint64_t want = kHeaderBytes + std::uint64_t{count} * size_of(shard.dtype);
  PT_CHECK(bytes.size() == want, kData,
           "\"{}\" is a truncated or damaged token file: {} tokens need {} bytes, it has {}",
           printable(file), count, want, bytes.size());
  return shard;
}

RawSplit to_split(std::vector<TokenShard> shards) {
  if (shards.empty()) return {};
  return {{}, std::make_shared<const std::vector<TokenShard>>(std::move(shards))};
}

/// Texts one after the other, so that samples may begin in one file and end in the next.
std::vector<TokenShard> joined(std::vector<TokenShard> texts, const std::string& path) {
  if (texts.size() < 2) return texts;
  std::size_t size = 0;
  for (const TokenShard& text : texts) size += text.content.size();
  std::string bytes;
  bytes.reserve(size);
  for (const TokenShard& text : texts) {
    bytes += text.content.text();
    text.content.check();
  }
  std::vector<TokenShard> out;
  out.push_back({path, FileBytes(std::move(bytes)), DType::kUint8, 0});
  return out;
}

}  // namespace

bool is_llmc_tokens(std::span<const std::byte> bytes) {
  return bytes.size() >= kHeaderBytes && (word(bytes, 0) == kMagic16 || word(bytes, 0) == kMagic32);
}

RawData read_tokens(const std::string& path, DType headerless_dtype) {
  RawData out{path, "", {}, {}, {}};
  std::vector<TokenShard> train, validation;
  const auto is_token_name = [](const std::string& name) {
    return bare_name(name).ends_with(".bin");
  };
  for (const std::string& file : list_files(path, is_token_name)) {
    TokenShard shard = open_shard(file, headerless_dtype);
    (names_other_part(file) ? validation : train).push_back(std::move(shard));
  }
  PT_CHECK(!train.empty() || !validation.empty(), kData, "\"{}\" has no token files (*.bin)",
           printable(path));
  if (train.empty()) std::swap(train, validation);
  const TokenShard& first = train.front();
  out.format = fmt::format("{} tokens, {}", first.header_bytes ? "llm.c" : "headerless",
                           name_of(first.dtype));
  if (first.header_bytes == 0 && headerless_dtype == DType::kUndefined) {
    out.notes.push_back(fmt::format("tokens look like {}; {} u16 or u32 says which",
                                    name_of(first.dtype), setting("token-dtype")));
  }
  out.train = to_split(std::move(train));
  out.validation = to_split(std::move(validation));
  return out;
}

RawData read_text(const std::string& path) {
  RawData out{path, "text, one token per byte", {}, {}, {}};
  std::vector<TokenShard> train, validation;
  const std::vector<std::string> files = list_files(path);
  const bool has_parts = std::ranges::any_of(files, names_training_part);
  for (const std::string& file : files) {
    TokenShard shard{file, FileBytes::open_text(file), DType::kUint8, 0};
    const bool other = has_parts && names_other_part(file);
    if (shard.content.size() > 0) (other ? validation : train).push_back(std::move(shard));
  }
  PT_CHECK(!train.empty(), kData, "\"{}\" has no text: it is empty", printable(path));
  out.train = to_split(joined(std::move(train), path));
  if (!validation.empty()) out.validation = to_split(joined(std::move(validation), path));
  return out;
}

}  // namespace pipetrain
