#include "data/files/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "base/error.h"

namespace pipetrain {

namespace {

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDirectoryHeader = 0x02014b50;
constexpr std::uint32_t kEndOfDirectory = 0x06054b50;
constexpr std::uint32_t kEndOfDirectory64 = 0x06064b50;
constexpr std::uint32_t kLocator64 = 0x07064b50;
constexpr std::uint32_t kIn64 = 0xffffffff;  // the value is in a ZIP64 field instead

constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kLocatorBytes = 20;
constexpr std::size_t kMaximumComment = 65535;
// Deflate cannot expand more than this; a larger claim is a lie, found before memory is taken.
constexpr std::uint64_t kMaximumExpansion = 1032;

std::uint16_t u16(std::span<const std::byte> at, std::size_t offset) {
  return static_cast<std::uint16_t>(little_endian(at.subspan(offset, 2)));
}
std::uint32_t u32(std::span<const std::byte> at, std::size_t offset) {
  return static_cast<std::uint32_t>(little_endian(at.subspan(offset, 4)));
}
std::uint64_t u64(std::span<const std::byte> at, std::size_t offset) {
  return little_endian(at.subspan(offset, 8));
}

std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Takes the 64-bit values from an entry's extra fields, in the order that the standard fixes.
void read_extra64(std::span<const std::byte> extra, ZipEntry& entry) {
  while (extra.size() >= 4) {
    const std::uint16_t id = u16(extra, 0);
    const std::size_t length = std::min<std::size_t>(u16(extra, 2), extra.size() - 4);
    std::span<const std::byte> field = extra.subspan(4, length);
    extra = extra.subspan(4 + length);
    if (id != 1) continue;
    for (std::uint64_t* value : {&entry.bytes, &entry.compressed_bytes, &entry.header_begin}) {
      if (*value != kIn64 || field.size() < 8) continue;
      *value = u64(field, 0);
      field = field.subspan(8);
    }
  }
}

}  // namespace

ZipArchive::ZipArchive(FileBytes content, std::string name)
    : content_(std::move(content)), name_(printable(name)) {
  read_directory();
}

std::span<const std::byte> ZipArchive::part(std::uint64_t begin, std::uint64_t length) const {
  const std::uint64_t size = content_.size();
  PT_CHECK(begin <= size && length <= size - begin, kData,
           "\"{}\" is a damaged or truncated ZIP archive: it names bytes {} to {} of {}", name_,
           begin, begin + length, size);
  return content_.bytes().subspan(begin, length);
}

void ZipArchive::read_directory() {
  const std::size_t size = content_.size();
  std::uint64_t inflated = 0, packed_bytes = 0;
  PT_CHECK(size >= kEndBytes, kData, "\"{}\" is too short for a ZIP archive: {} bytes", name_,
           size);
  std::size_t end = size - kEndBytes;
  const std::size_t lowest = end - std::min(end, kMaximumComment);
  while (u32(content_.bytes(), end) != kEndOfDirectory) {
    PT_CHECK(end > lowest, kData, "\"{}\" is a truncated ZIP archive: its directory is missing",
             name_);
    --end;
  }
  const auto record = part(end, kEndBytes);
  std::uint64_t count = u16(record, 10);
  std::uint64_t begin = u32(record, 16);
  if (end >= kLocatorBytes && u32(content_.bytes(), end - kLocatorBytes) == kLocator64) {
    const auto record64 = part(u64(content_.bytes(), end - kLocatorBytes + 8), 56);
    PT_CHECK(u32(record64, 0) == kEndOfDirectory64, kData,
             "\"{}\" is a damaged ZIP archive: no ZIP64 directory where it should be", name_);
    count = u64(record64, 32);
    begin = u64(record64, 48);
  }
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto header = part(begin, 46);
    PT_CHECK(u32(header, 0) == kDirectoryHeader, kData,
             "\"{}\" is a damaged ZIP archive: entry {} of {} is not in its directory", name_, i,
             count);
    ZipEntry entry;
    entry.flags = u16(header, 8);
    entry.method = u16(header, 10);
    entry.checksum = u32(header, 16);
    entry.compressed_bytes = u32(header, 20);
    entry.bytes = u32(header, 24);
    entry.header_begin = u32(header, 42);
    const std::size_t name_bytes = u16(header, 28), extra_bytes = u16(header, 30);
    const auto name = part(begin + 46, name_bytes);
    entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
    PT_CHECK(names.insert(entry.name).second, kData,
             "\"{}\" is a damaged ZIP archive: it has two entries \"{}\"", name_,
             printable(entry.name));
    read_extra64(part(begin + 46 + name_bytes, extra_bytes), entry);
    begin += 46 + name_bytes + extra_bytes + u16(header, 32);
    // A claim beyond what deflate can do is refused when the entry is read.
    const std::uint64_t packed = std::min<std::uint64_t>(entry.compressed_bytes, size);
    packed_bytes += packed;
    PT_CHECK(
        packed_bytes <= size, kData,
        "\"{}\" is a damaged ZIP archive: its entries overlap, with {} bytes and more in a file "
        "of {}",
        name_, packed_bytes, size);
    if (entry.method != 0 && entry.bytes / kMaximumExpansion <= packed) inflated += entry.bytes;
    check_inflated(size, inflated, name_, "unzip, or numpy.savez instead of savez_compressed");
    entries_.push_back(std::move(entry));
  }
}

FileBytes ZipArchive::read(const ZipEntry& entry) const {
  const std::string what = fmt::format("entry \"{}\" of \"{}\"", printable(entry.name), name_);
  PT_CHECK((entry.flags & 1) == 0, kData, "{} is encrypted", what);
  PT_CHECK(entry.method == 0 || entry.method == 8, kData,
           "{} uses ZIP compression method {}; stored and deflate can be read", what, entry.method);
  const auto header = part(entry.header_begin, 30);
  PT_CHECK(u32(header, 0) == kLocalHeader, kData, "{} is damaged: it has no header", what);
  const std::uint64_t begin = entry.header_begin + 30 + u16(header, 26) + u16(header, 28);
  const auto packed = part(begin, entry.compressed_bytes);
  FileBytes out;
  if (entry.method == 0) {
    PT_CHECK(entry.bytes == entry.compressed_bytes, kData,
             "{} is damaged: stored, but with two sizes, {} and {}", what, entry.bytes,
             entry.compressed_bytes);
    out = content_.slice(begin, entry.bytes);
  } else {
    PT_CHECK(entry.bytes / kMaximumExpansion <= entry.compressed_bytes, kData,
             "{} is damaged: {} bytes cannot inflate to {}", what, entry.compressed_bytes,
             entry.bytes);
    std::string inflated(entry.bytes, '\0');
    inflate_raw(packed, std::as_writable_bytes(std::span(inflated)), what);
    out = FileBytes(std::move(inflated));
  }
  PT_CHECK(crc32_of(out.bytes()) == entry.checksum, kData, "{} is damaged: its checksum is wrong",
           what);
  return out;
}

}  // namespace pipetrain
