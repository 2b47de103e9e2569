// Compressed bytes: gzip and raw deflate by zlib, xz by liblzma.
#include <lzma.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "data/files/file_bytes.h"

namespace pipetrain {

namespace {

// The dictionaries of xz -9 take 64 MiB.
constexpr std::uint64_t kMaximumXzMemory = std::uint64_t{1} << 30;

/// What a compressed file may inflate to: tables of text shrink to a tenth or so, and a small file
/// that fills the memory is a mistake or an attack.
std::uint64_t most_inflated(std::uint64_t compressed) {
  constexpr std::uint64_t kAlways = std::uint64_t{256} << 20, kPerByte = 32;
  return kAlways + kPerByte * compressed;
}

// Bytes beyond those of the compressed file that there is room for at first.
constexpr std::size_t kFirstRoom = 65536;

// Makes room for more, and for a byte too many at last.
void grow(std::string& out, std::size_t first, std::size_t largest) {
  out.resize(std::min(std::max(out.size() * 2, first), largest + 1));
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
constexpr std::size_t kInflatePiece = std::numeric_limits<uInt>::max() / 2;

// Tapes and block devices pad files with zeros.
void check_padding(std::span<const std::byte> rest, std::size_t begin, const std::string& name) {
  const auto other = std::ranges::find_if(rest, [](std::byte b) { return b != std::byte{0}; });
  PT_CHECK(other == rest.end(), kData,
           "\"{}\" is a damaged gzip file: its last {} of {} bytes are not compressed data",
           printable(name), rest.size(), begin + rest.size());
}

}  // namespace

void check_inflated(std::uint64_t compressed, std::uint64_t inflated, const std::string& name,
                    const char* program) {
  PT_CHECK(inflated <= most_inflated(compressed), kData,
           "\"{}\" has {}, but inflates to more than {}; if that is right, inflate it first: {}",
           printable(name), bytes_text(compressed), bytes_text(most_inflated(compressed)), program);
}

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 3 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b} &&
         bytes[2] == std::byte{8};
}

std::string inflate_gzip(std::span<const std::byte> bytes, const std::string& name,
                         std::size_t most) {
  Inflater inflater(15 + 16, name);  // 16: gzip's header and checksum
  z_stream& stream = inflater.stream;
  const std::size_t largest = most_inflated(bytes.size());
  std::string out;
  std::size_t read = 0, written = 0;
  while (written < most) {
    if (written == out.size()) grow(out, std::min(bytes.size() + kFirstRoom, most), largest);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + read));
    stream.avail_in = static_cast<uInt>(std::min(kInflatePiece, bytes.size() - read));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + written);
    stream.avail_out =
        static_cast<uInt>(std::min(kInflatePiece, std::min(out.size(), most) - written));
    const uInt given_in = stream.avail_in, given_out = stream.avail_out;
    const int result = inflate(&stream, Z_NO_FLUSH);
    read += given_in - stream.avail_in;
    written += given_out - stream.avail_out;
    check_inflated(bytes.size(), written, name, "gunzip");
    if (result == Z_STREAM_END) {
      if (!is_gzip(bytes.subspan(read))) {
        check_padding(bytes.subspan(read), read, name);
        break;
      }
      inflateReset(&stream);
      continue;
    }
    const bool stuck = given_in == stream.avail_in && given_out == stream.avail_out;
    PT_CHECK((result == Z_OK || result == Z_BUF_ERROR) && !(stuck && read == bytes.size()), kData,
             "\"{}\" is a damaged or truncated gzip file ({} of {} bytes inflated)",
             printable(name), read, bytes.size());
  }
  out.resize(written);
  out.shrink_to_fit();
  return out;
}

bool is_xz(std::span<const std::byte> bytes) {
  constexpr std::string_view kMagic(
      "\xfd"
      "7zXZ\0",
      6);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.starts_with(kMagic);
}

std::string inflate_xz(std::span<const std::byte> bytes, const std::string& name,
                       std::size_t most) {
  lzma_stream stream = LZMA_STREAM_INIT;
  const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> owner(&stream, lzma_end);
  PT_CHECK(lzma_stream_decoder(&stream, kMaximumXzMemory, LZMA_CONCATENATED) == LZMA_OK, kResource,
           "cannot inflate \"{}\"", printable(name));
  stream.next_in = reinterpret_cast<const std::uint8_t*>(bytes.data());
  stream.avail_in = bytes.size();
  const std::size_t largest = most_inflated(bytes.size());
  std::string out;
  std::size_t written = 0;
  while (written < most) {
    if (written == out.size()) grow(out, std::min(kFirstRoom, most), largest);
    stream.next_out = reinterpret_cast<std::uint8_t*>(out.data() + written);
    stream.avail_out = std::min(out.size(), most) - written;
    const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
    written = static_cast<std::size_t>(stream.next_out -
                                       reinterpret_cast<const std::uint8_t*>(out.data()));
    if (result == LZMA_STREAM_END) break;
    PT_CHECK(result != LZMA_MEMLIMIT_ERROR, kData, "\"{}\" needs more than 1 GiB to be inflated",
             printable(name));
    check_inflated(bytes.size(), written, name, "unxz");
    PT_CHECK(result == LZMA_OK, kData,
             "\"{}\" is a damaged or truncated xz file ({} of {} bytes inflated)", printable(name),
             bytes.size() - stream.avail_in, bytes.size());
  }
  out.resize(written);
  out.shrink_to_fit();
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
    stream.avail_in = static_cast<uInt>(std::min(kInflatePiece, bytes.size() - read));
    stream.next_out = reinterpret_cast<Bytef*>(full ? &overflow : out.data() + written);
    stream.avail_out = full ? 1 : static_cast<uInt>(std::min(kInflatePiece, out.size() - written));
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

}  // namespace pipetrain
