#include "data/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace pipetrain {

namespace {

// A gzip file that claims to be larger is a mistake or an attack.
constexpr std::size_t kMaximumInflated = std::size_t{64} << 30;

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

struct Inflater {
  z_stream stream{};
  explicit Inflater(int window_bits, const std::string& name) {
    PT_CHECK(inflateInit2(&stream, window_bits) == Z_OK, kResource, "cannot inflate \"{}\"",
             printable(name));
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

// zlib counts in 32 bits, so both sides are handed over in pieces.
constexpr std::size_t kPiece = std::numeric_limits<uInt>::max() / 2;

}  // namespace

FileBytes::FileBytes(std::string content) {
  const auto owned = std::make_shared<const std::string>(std::move(content));
  bytes_ = std::as_bytes(std::span(*owned));
  owner_ = owned;
}

FileBytes FileBytes::open(const std::string& path) {
  if (path == "-") return FileBytes(read_all(STDIN_FILENO, "standard input"));
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  PT_CHECK(file.number >= 0, kData, "cannot open \"{}\": {}", printable(path),
           std::strerror(errno));
  struct stat status {};
  PT_CHECK(::fstat(file.number, &status) == 0, kData, "cannot read \"{}\": {}", printable(path),
           std::strerror(errno));
  PT_CHECK(!S_ISDIR(status.st_mode), kData, "\"{}\" is a directory, not a file", printable(path));
  if (!S_ISREG(status.st_mode)) return FileBytes(read_all(file.number, path));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return FileBytes(std::string());
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (address == MAP_FAILED) return FileBytes(read_all(file.number, path));
  FileBytes out;
  out.owner_ = std::shared_ptr<const void>(
      address, [size](const void* mapped) { ::munmap(const_cast<void*>(mapped), size); });
  out.bytes_ = {static_cast<const std::byte*>(address), size};
  return out;
}

FileBytes FileBytes::open_inflated(const std::string& path) {
  FileBytes file = open(path);
  if (!is_gzip(file.bytes())) return file;
  return FileBytes(inflate_gzip(file.bytes(), path));
}

FileBytes FileBytes::slice(std::size_t begin, std::size_t length) const {
  FileBytes out;
  out.owner_ = owner_;
  out.bytes_ = bytes_.subspan(begin, length);
  return out;
}

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 3 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b} &&
         bytes[2] == std::byte{8};
}

std::string inflate_gzip(std::span<const std::byte> bytes, const std::string& name) {
  Inflater inflater(15 + 16, name);  // 16: gzip's header and checksum
  z_stream& stream = inflater.stream;
  std::string out;
  std::size_t read = 0, written = 0;
  while (true) {
    if (written == out.size()) out.resize(std::max<std::size_t>(out.size() * 2, bytes.size() * 4));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + read));
    stream.avail_in = static_cast<uInt>(std::min(kPiece, bytes.size() - read));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + written);
    stream.avail_out = static_cast<uInt>(std::min(kPiece, out.size() - written));
    const uInt given_in = stream.avail_in, given_out = stream.avail_out;
    const int result = inflate(&stream, Z_NO_FLUSH);
    read += given_in - stream.avail_in;
    written += given_out - stream.avail_out;
    PT_CHECK(written <= kMaximumInflated, kData, "\"{}\" inflates to more than 64 GiB",
             printable(name));
    if (result == Z_STREAM_END) {
      if (!is_gzip(bytes.subspan(read))) break;  // what follows the last member is padding
      inflateReset(&stream);
      continue;
    }
    const bool stuck = given_in == stream.avail_in && given_out == stream.avail_out;
    PT_CHECK((result == Z_OK || result == Z_BUF_ERROR) && !(stuck && read == bytes.size()), kData,
             "\"{}\" is a damaged or truncated gzip file ({} of {} bytes inflated)",
             printable(name), read, bytes.size());
  }
  out.resize(written);
  return out;
}

void inflate_raw(std::span<const std::byte> bytes, std::span<std::byte> out,
                 const std::string& name) {
  Inflater inflater(-15, name);  // negative: no zlib header
  z_stream& stream = inflater.stream;
  std::size_t read = 0, written = 0;
  int result = Z_OK;
  std::byte overflow{};  // one byte more than promised is an error, and needs a place to go
  while (result == Z_OK) {
    const bool full = written == out.size();
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + read));
    stream.avail_in = static_cast<uInt>(std::min(kPiece, bytes.size() - read));
    stream.next_out = reinterpret_cast<Bytef*>(full ? &overflow : out.data() + written);
    stream.avail_out = full ? 1 : static_cast<uInt>(std::min(kPiece, out.size() - written));
    const uInt given_in = stream.avail_in, given_out = stream.avail_out;
    result = inflate(&stream, Z_NO_FLUSH);
    read += given_in - stream.avail_in;
    written += given_out - stream.avail_out;
    PT_CHECK(written <= out.size(), kData, "{} inflates to more than its {} bytes", name,
             out.size());
  }
  PT_CHECK(result == Z_STREAM_END && written == out.size(), kData,
           "{} is damaged: {} of {} bytes can be inflated", name, written, out.size());
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
