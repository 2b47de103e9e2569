#include "data/files/tar_archive.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace pipetrain {

namespace {

constexpr std::size_t kBlock = 512;

std::string_view field(std::string_view header, std::size_t begin, std::size_t length) {
  const std::string_view text = header.substr(begin, length);
  return text.substr(0, text.find('\0'));
}

// Octal digits, or GNU's big-endian number after a byte of 0x80.
std::optional<std::uint64_t> tar_number(std::string_view text) {
  if (!text.empty() && static_cast<unsigned char>(text[0]) == 0x80) {
    std::uint64_t out = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (out >> 55) return std::nullopt;
      out = out << 8 | static_cast<unsigned char>(text[i]);
    }
    return out;
  }
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return 0;
  text.remove_prefix(begin);
  text = text.substr(0, text.find_first_of(std::string_view(" \0", 2)));
  std::uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 8);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

bool checksum_holds(std::string_view header) {
  std::uint64_t sum = 8 * ' ';
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (i < 148 || i >= 156) sum += static_cast<unsigned char>(header[i]);
  }
  return tar_number(header.substr(148, 8)) == sum;
}

// Records "LENGTH KEY=VALUE\n" of a pax header: what they say of the next member.
struct PaxRecords {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
  bool good = true;

  explicit PaxRecords(std::string_view text) {
    while (!text.empty() && good) {
      std::size_t length = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
      const auto digits = static_cast<std::size_t>(end - text.data());
      good = error == std::errc() && length > digits + 1 && length <= text.size() &&
             text[digits] == ' ' && text[length - 1] == '\n';
      if (good) take(text.substr(digits + 1, length - digits - 2));
      text.remove_prefix(good ? length : text.size());
    }
  }

 private:
  void take(std::string_view record) {
    const std::size_t equal = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equal);
    const std::string_view value = record.substr(std::min(equal + 1, record.size()));
    if (key == "path") path = value;
    if (key != "size") return;
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    good = error == std::errc() && end == value.data() + value.size();
    size = number;
  }
};

}  // namespace

bool is_tar(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.size() >= kBlock && text.substr(257, 5) == "ustar";
}

std::vector<TarMember> read_tar(const FileBytes& archive, const std::string& file) {
  const std::string_view all = archive.text();
  const std::string shown = printable(file);
  std::vector<TarMember> out;
  std::optional<std::string> long_name;
  std::optional<std::uint64_t> long_size;
  std::size_t at = 0;
  bool ended = false;
  while (at < all.size()) {
    PT_CHECK(all.size() - at >= kBlock, kData,
             "\"{}\" is a truncated tar archive, after {} members", shown, out.size());
    const std::string_view header = all.substr(at, kBlock);
    if (std::ranges::all_of(header, [](char c) { return c == 0; })) {
      ended = true;
      break;
    }
    PT_CHECK(checksum_holds(header), kData,
             "\"{}\" is a damaged tar archive: the header after {} members", shown, out.size());
    std::string name(field(header, 0, 100));
    const bool posix = header.substr(257, 6) == std::string_view("ustar\0", 6);
    if (const auto prefix = field(header, 345, 155); posix && !prefix.empty()) {
      name = std::string(prefix) + "/" + name;
    }
    if (long_name) name = *long_name;
    const char type = header[156];
    const bool describes = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    auto size = tar_number(header.substr(124, 12));
    if (long_size && !describes) size = long_size;
    const bool has_content = type == '0' || type == 0 || type == '7' || describes;
    at += kBlock;
    const std::uint64_t length = has_content ? size.value_or(UINT64_MAX) : 0;
    PT_CHECK(length <= all.size() - at, kData, "\"{}\" is a truncated tar archive: member {}",
             shown, printable(name));
    const std::string_view content = all.substr(at, length);
    if (type == 'x') {
      const PaxRecords records(content);
      PT_CHECK(records.good, kData, "\"{}\" is a damaged tar archive: the header after {} members",
               shown, out.size());
      if (records.path) long_name = records.path;
      if (records.size) long_size = records.size;
    } else if (type == 'L') {
      long_name = content.substr(0, content.find('\0'));
    } else if (!describes) {
      const bool regular = type == '0' || type == 0 || type == '7';
      if (regular) out.push_back({name, archive.slice(at, length)});
      long_name.reset();
      long_size.reset();
    }
    at += std::min(all.size() - at, (length + kBlock - 1) / kBlock * kBlock);
  }
  PT_CHECK(ended || out.empty() || at == all.size(), kData, "\"{}\" is a truncated tar archive",
           shown);
  return out;
}

}  // namespace pipetrain
