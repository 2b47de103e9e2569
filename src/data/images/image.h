// Images: decoded from PNG, JPEG, WebP, BMP or PPM into bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pipetrain {

struct Image {
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t channels = 0;          // 1: grey, 3: red, green, blue, 4: with opacity
  std::vector<std::uint8_t> pixels;  // (height, width, channels)
};

/// The size that an image has at least after decoding, where it has it before. JPEG files are
/// decoded at 1/2, 1/4 or 1/8 if that is enough.
struct LeastSize {
  std::size_t height = 0;  // 0: all of it
  std::size_t width = 0;
};

enum class ImageFormat { kNone, kPng, kJpeg, kWebp, kBmp, kPnm };
/// By the first bytes.
ImageFormat image_format(std::span<const std::byte> bytes);
/// By the name: ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm", ".pnm".
bool has_image_name(std::string_view lower_case_name);

/// Decodes with as many channels as the file has (1, 3 or 4), or with `channels` if that is not 0.
/// Grey is 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601); opacity is left out or 255; of 16
/// bits, the upper 8 are taken; JPEG files are rotated by their EXIF orientation. `name` is for
/// errors (kData).
Image decode_image(std::span<const std::byte> bytes, const std::string& name,
                   std::size_t channels = 0, LeastSize least = {});

/// The numbers of a grey PNG or of one with a palette as they are stored: the classes of pixels.
/// Error (kData) for other files.
Image decode_mask(std::span<const std::byte> bytes, const std::string& name);

/// One reader for each format (of a moving WebP image, none); as decode_image without a wanted number of channels.
Image decode_png(std::span<const std::byte> bytes, const std::string& name);
Image decode_jpeg(std::span<const std::byte> bytes, const std::string& name, bool grey,
                  LeastSize least);
Image decode_webp(std::span<const std::byte> bytes, const std::string& name);
Image decode_bmp(std::span<const std::byte> bytes, const std::string& name);
Image decode_pnm(std::span<const std::byte> bytes, const std::string& name);

/// Error kData for an image of no size or of an impossible one; else its memory.
void allocate_pixels(Image& image, const std::string& name);

}  // namespace pipetrain
