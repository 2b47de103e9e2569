#include "data/files/file_bytes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"

namespace pipetrain {

namespace {

/// Bytes that a pipe may have, which might never end: memory holds them, twice while it grows.
std::size_t most_piped() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0
             ? static_cast<std::size_t>(pages) / 4 * static_cast<std::size_t>(page)
             : std::size_t{1} << 30;
}

// A pipe can be read only once, but its content is needed several times.
const FileBytes& standard_input() {
  static const FileBytes content(
      read_all(STDIN_FILENO, "standard input", ErrorKind::kData, most_piped()));
  return content;
}

// The pipes that have been read, by device and inode.
std::mutex pipes_mutex;
std::map<std::pair<dev_t, ino_t>, FileBytes> pipes;

const FileBytes* find_pipe(const struct stat& status) {
  const auto found = pipes.find({status.st_dev, status.st_ino});
  return found == pipes.end() ? nullptr : &found->second;
}

FileBytes open_pipe(const std::string& path, const struct stat& status) {
  const std::lock_guard lock(pipes_mutex);
  if (const FileBytes* known = find_pipe(status)) return *known;
  const InputFile file(path, ErrorKind::kData, InputFile::Takes::kPipesToo);
  return pipes[{status.st_dev, status.st_ino}] = FileBytes(file.read(most_piped()));
}

}  // namespace

FileBytes::FileBytes(std::string content) {
  const auto owned = std::make_shared<const std::string>(std::move(content));
  bytes_ = std::as_bytes(std::span(*owned));
  owner_ = owned;
}

FileBytes FileBytes::open(const std::string& path) {
  if (path == "-") return standard_input();
  struct stat named {};
  if (::stat(path.c_str(), &named) == 0) {
    if (S_ISFIFO(named.st_mode)) return open_pipe(path, named);
    PT_CHECK(!S_ISCHR(named.st_mode) && !S_ISBLK(named.st_mode), kData,
             "\"{}\" is a device, not a file", printable(path));
  }
  const InputFile file(path, ErrorKind::kData, InputFile::Takes::kPipesToo);
  const struct stat& status = file.status();
  if (!S_ISREG(status.st_mode)) return FileBytes(file.read(most_piped()));
  if (status.st_size == 0) return FileBytes(std::string());
  const std::shared_ptr<const MappedFile> mapped = MappedFile::map(file.descriptor(), status, path);
  if (!mapped) return FileBytes(file.read(most_piped()));
  FileBytes out;
  out.owner_ = mapped;
  out.mapped_ = mapped.get();
  out.bytes_ = mapped->bytes();
  return out;
}

FileBytes FileBytes::open_inflated(const std::string& path) {
  FileBytes file = open(path);
  if (is_gzip(file.bytes())) return FileBytes(inflate_gzip(file.bytes(), path));
  if (is_xz(file.bytes())) return FileBytes(inflate_xz(file.bytes(), path));
  return file;
}

FileBytes FileBytes::open_text(const std::string& path) {
  FileBytes file = open_inflated(path);
  check_not_utf16(file.text(), path);
  return file;
}

FileBytes FileBytes::open_head(const std::string& path, std::size_t most) {
  const FileBytes file = open(path);
  if (is_gzip(file.bytes())) return FileBytes(inflate_gzip(file.bytes(), path, most));
  if (is_xz(file.bytes())) return FileBytes(inflate_xz(file.bytes(), path, most));
  return file.slice(0, std::min(file.size(), most));
}

FileBytes FileBytes::slice(std::size_t begin, std::size_t length) const {
  FileBytes out;
  out.owner_ = owner_;
  out.mapped_ = mapped_;
  out.bytes_ = bytes_.subspan(begin, length);
  return out;
}

void check_not_utf16(std::string_view text, const std::string& name) {
  PT_CHECK(!text.starts_with("\xff\xfe") && !text.starts_with("\xfe\xff"), kData,
           "\"{}\" is UTF-16; convert it: iconv -f utf-16 -t utf-8", printable(name));
}

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t out = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) out = out << 8 | std::to_integer<unsigned>(bytes[i]);
  return out;
}

std::uint64_t big_endian(std::span<const std::byte> bytes) {
  std::uint64_t out = 0;
  for (const std::byte byte : bytes) out = out << 8 | std::to_integer<unsigned>(byte);
  return out;
}

void swap_bytes(std::span<std::byte> bytes, std::size_t element_size) {
  if (element_size < 2) return;
  for (std::size_t at = 0; at + element_size <= bytes.size(); at += element_size) {
    std::reverse(bytes.begin() + at, bytes.begin() + at + element_size);
  }
}

}  // namespace pipetrain
