#include "data/files/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace pipetrain {

namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number > STDERR_FILENO) ::close(number);
  }
};

std::string read_all(int descriptor, const std::string& path) {
  std::string out;
  std::size_t used = 0;
  while (true) {
    if (out.size() - used < 65536) out.resize(std::max<std::size_t>(out.size() * 2, 1 << 18));
    const ssize_t got = ::read(descriptor, out.data() + used, out.size() - used);
    if (got < 0 && errno == EINTR) continue;
    PT_CHECK(got >= 0, kData, "cannot read \"{}\": {}", printable(path), std::strerror(errno));
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  out.resize(used);
  return out;
}

// A pipe can be read only once, but its content is needed several times.
const FileBytes& standard_input() {
  static const FileBytes content(read_all(STDIN_FILENO, "standard input"));
  return content;
}

}  // namespace

FileBytes::FileBytes(std::string content) {
  const auto owned = std::make_shared<const std::string>(std::move(content));
  bytes_ = std::as_bytes(std::span(*owned));
  owner_ = owned;
}

FileBytes FileBytes::open(const std::string& path) {
  if (path == "-") return standard_input();
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  PT_CHECK(file.number >= 0, kData, "cannot open \"{}\": {}", printable(path),
           std::strerror(errno));
  struct stat status {};
  PT_CHECK(::fstat(file.number, &status) == 0, kData, "cannot read \"{}\": {}", printable(path),
           std::strerror(errno));
  PT_CHECK(!S_ISDIR(status.st_mode), kData, "\"{}\" is a directory, not a file", printable(path));
  if (!S_ISREG(status.st_mode)) return FileBytes(read_all(file.number, path));
  if (status.st_size == 0) return FileBytes(std::string());
  const std::shared_ptr<const MappedFile> mapped = MappedFile::map(file.number, status, path);
  if (!mapped) return FileBytes(read_all(file.number, path));
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
