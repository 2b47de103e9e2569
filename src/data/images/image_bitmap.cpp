// Uncompressed formats: Windows bitmaps, and Netpbm's PGM and PPM (P2, P3, P5, P6).
#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>

#include "base/error.h"
#include "data/files/file_bytes.h"
#include "data/images/image.h"

namespace pipetrain {

namespace {

struct BmpHeader {
  std::uint64_t pixels_begin = 0;
  std::uint64_t header_bytes = 0;
  std::uint64_t bits = 0;
  std::uint64_t colours = 0;
  bool top_down = false;
  std::uint32_t masks[3] = {0xff0000, 0xff00, 0xff};
};

std::uint64_t at(std::span<const std::byte> bytes, std::size_t begin, std::size_t count) {
  return little_endian(bytes.subspan(begin, count));
}

BmpHeader read_bmp_header(std::span<const std::byte> bytes, const std::string& name, Image& out) {
  PT_CHECK(bytes.size() >= 54, kData, "{} is a truncated BMP file", name);
  BmpHeader header;
  header.pixels_begin = at(bytes, 10, 4);
  header.header_bytes = at(bytes, 14, 4);
  PT_CHECK(header.header_bytes >= 40, kData, "{} is an OS/2 BMP file, which is not supported",
           name);
  const auto height = static_cast<std::int32_t>(at(bytes, 22, 4));
  const auto width = static_cast<std::int32_t>(at(bytes, 18, 4));
  header.top_down = height < 0;
  out.height = height < 0 ? 0 - static_cast<std::int64_t>(height) : height;
  out.width = width > 0 ? width : 0;
  header.bits = at(bytes, 28, 2);
  const std::uint64_t compression = at(bytes, 30, 4);
  header.colours = at(bytes, 46, 4);
  PT_CHECK(compression == 0 || (compression == 3 && (header.bits == 32 || header.bits == 16)),
           kData, "{} is a compressed BMP file, which is not supported", name);
  PT_CHECK(header.bits == 1 || header.bits == 4 || header.bits == 8 || header.bits == 16 ||
               header.bits == 24 || header.bits == 32,
           kData, "{} is a damaged BMP file: {} bits per pixel", name, header.bits);
  if (header.bits == 16) {
    header.masks[0] = 0x7c00, header.masks[1] = 0x3e0, header.masks[2] = 0x1f;
  }
  if (compression == 3) {
    PT_CHECK(bytes.size() >= 66, kData, "{} is a truncated BMP file", name);
    for (std::size_t c = 0; c < 3; ++c) {
      header.masks[c] = static_cast<std::uint32_t>(at(bytes, 54 + 4 * c, 4));
    }
  }
  return header;
}

std::uint8_t masked(std::uint32_t value, std::uint32_t mask) {
  if (mask == 0) return 0;
  const std::uint32_t most = mask >> std::countr_zero(mask);
  return static_cast<std::uint8_t>(
      (std::uint64_t{(value & mask) >> std::countr_zero(mask)} * 255 + most / 2) / most);
}

// Numbers of a Netpbm header or of an ASCII image; '#' begins a comment.
class PnmReader {
 public:
  PnmReader(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  std::uint64_t number() {
    while (!rest_.empty() &&
           (std::isspace(static_cast<unsigned char>(rest_[0])) || rest_[0] == '#')) {
      if (rest_[0] == '#') {
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
        continue;
      }
      rest_.remove_prefix(1);
    }
    std::uint64_t out = 0;
    std::size_t digits = 0;
    while (digits < rest_.size() && digits < 10 && rest_[digits] >= '0' && rest_[digits] <= '9') {
      out = out * 10 + static_cast<std::uint64_t>(rest_[digits++] - '0');
    }
    PT_CHECK(digits > 0, kData, "{} is a damaged or truncated PPM file", name_);
    rest_.remove_prefix(digits);
    return out;
  }
  /// What follows the single whitespace after the header.
  std::string_view rest() const { return rest_.substr(std::min<std::size_t>(1, rest_.size())); }

 private:
  std::string_view rest_;
  const std::string& name_;
};

}  // namespace

Image decode_bmp(std::span<const std::byte> bytes, const std::string& name) {
  Image out;
  const BmpHeader header = read_bmp_header(bytes, name, out);
  const bool palette = header.bits <= 8;
  const std::uint64_t colours = !palette         ? 0
                                : header.colours ? header.colours
                                                 : std::uint64_t{1} << header.bits;
  const std::uint64_t palette_begin = 14 + header.header_bytes;
  PT_CHECK(!palette || (colours <= 256 && palette_begin <= bytes.size() &&
                        4 * colours <= bytes.size() - palette_begin),
           kData, "{} is a damaged BMP file: its palette is too long", name);
  // A palette of greys in order is a grey image.
  bool grey = palette;
  for (std::uint64_t i = 0; i < colours; ++i) {
    const auto colour = bytes.subspan(palette_begin + 4 * i, 3);
    grey &= colour[0] == colour[1] && colour[1] == colour[2];
  }
  out.channels = grey ? 1 : 3;
  const std::uint64_t stride = (out.width * header.bits + 31) / 32 * 4;
  PT_CHECK(out.height > 0 && out.width > 0 && header.pixels_begin <= bytes.size() &&
               stride <= (bytes.size() - header.pixels_begin) / out.height,
           kData, "{} is a truncated BMP file: {} x {} pixels of {} bits do not fit", name,
           out.width, out.height, header.bits);
  allocate_pixels(out, name);
  for (std::size_t y = 0; y < out.height; ++y) {
    const std::size_t from_row = header.top_down ? y : out.height - 1 - y;
    const auto row = bytes.subspan(header.pixels_begin + from_row * stride, stride);
    std::uint8_t* to = out.pixels.data() + y * out.width * out.channels;
    for (std::size_t x = 0; x < out.width; ++x, to += out.channels) {
      if (palette) {
        const std::size_t bit = x * header.bits;
        const auto index =
            (std::to_integer<std::uint64_t>(row[bit / 8]) >> (8 - header.bits - bit % 8)) &
            ((1u << header.bits) - 1);
        PT_CHECK(index < colours, kData, "{} is a damaged BMP file: color {} of {}", name, index,
                 colours);
        for (std::size_t c = 0; c < out.channels; ++c) {
          to[c] = std::to_integer<std::uint8_t>(bytes[palette_begin + 4 * index + 2 - c]);
        }
        continue;
      }
      const std::size_t size = header.bits / 8;
      const auto value = static_cast<std::uint32_t>(at(row, x * size, size));
      for (std::size_t c = 0; c < 3; ++c) to[c] = masked(value, header.masks[c]);
    }
  }
  return out;
}

Image decode_pnm(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const char kind = text[1];
  PnmReader reader(text.substr(2), name);
  Image out;
  out.width = reader.number();
  out.height = reader.number();
  const std::uint64_t most = reader.number();
  PT_CHECK(most > 0 && most < 65536, kData, "{} is a damaged PPM file: its maximum is {}", name,
           most);
  out.channels = kind == '2' || kind == '5' ? 1 : 3;
  const std::size_t size = most > 255 ? 2 : 1;
  const bool binary = kind == '5' || kind == '6';
  const std::string_view pixels = reader.rest();
  // Before memory is taken: a header alone must not cost any.
  const std::uint64_t row = std::uint64_t{out.width} * out.channels * (binary ? size : 1);
  PT_CHECK(out.width > 0 && out.height > 0 && row <= pixels.size() / out.height, kData,
           "{} is a truncated PPM file: {} x {} pixels do not fit", name, out.width, out.height);
  allocate_pixels(out, name);
  for (std::size_t i = 0; i < out.pixels.size(); ++i) {
    const auto value = binary ? big_endian(std::as_bytes(std::span(pixels.substr(i * size, size))))
                              : reader.number();
    PT_CHECK(value <= most, kData, "{} is a damaged PPM file: value {} of {}", name, value, most);
    out.pixels[i] =
        static_cast<std::uint8_t>(most == 255 ? value : (value * 255 + most / 2) / most);
  }
  return out;
}

}  // namespace pipetrain
