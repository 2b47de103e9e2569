#include "data/images/exif.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pipetrain {
namespace {

/// A TIFF header and what it points to; reads beyond the end give 0.
class Tiff {
 public:
  explicit Tiff(std::span<const unsigned char> bytes) : bytes_(bytes) {
    little_ = bytes.size() >= 2 && bytes[0] == 'I' && bytes[1] == 'I';
    valid_ = bytes.size() >= 8 && (little_ || (bytes[0] == 'M' && bytes[1] == 'M')) &&
             number(2, 2) == 42;
  }
  bool valid() const { return valid_; }
  std::size_t number(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return 0;
    std::size_t value = 0;
    for (std::size_t i = 0; i < count; ++i)
      value = value << 8 | bytes_[at + (little_ ? count - 1 - i : i)];
    return value;
  }

 private:
  std::span<const unsigned char> bytes_;
  bool little_ = false, valid_ = false;
};

}  // namespace

int exif_orientation(std::span<const unsigned char> segment) {
  constexpr std::size_t kTitle = 6, kEntry = 12;
  constexpr std::size_t kOrientation = 0x0112, kShort = 3;
  if (segment.size() < kTitle || std::memcmp(segment.data(), "Exif\0\0", kTitle) != 0) return 1;
  const Tiff tiff(segment.subspan(kTitle));
  if (!tiff.valid()) return 1;
  const std::size_t list = tiff.number(4, 4), entries = tiff.number(list, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t at = list + 2 + i * kEntry;
    if (tiff.number(at, 2) != kOrientation || tiff.number(at + 2, 2) != kShort) continue;
    const std::size_t value = tiff.number(at + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Image upright(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool sideways = lies_on_its_side(orientation);
  Image out{sideways ? image.width : image.height, sideways ? image.height : image.width,
            image.channels, std::vector<std::uint8_t>(image.pixels.size())};
  // Which row and column of the file is at row and column of what is seen.
  const bool bottom_first =
      orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  const bool right_first =
      orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  for (std::size_t row = 0; row < out.height; ++row) {
    for (std::size_t column = 0; column < out.width; ++column) {
      std::size_t r = sideways ? column : row, c = sideways ? row : column;
      const bool from_below = sideways ? right_first : bottom_first;
      const bool from_right = sideways ? bottom_first : right_first;
      if (from_below) r = image.height - 1 - r;
      if (from_right) c = image.width - 1 - c;
      std::copy_n(image.pixels.data() + (r * image.width + c) * image.channels, image.channels,
                  out.pixels.data() + (row * out.width + column) * out.channels);
    }
  }
  return out;
}

}  // namespace pipetrain
