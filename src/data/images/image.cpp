#include "data/images/image.h"

#include <algorithm>

#include "base/error.h"
#include "data/files/file_bytes.h"

namespace pipetrain {

namespace {

// As Pillow's limit against files of a few bytes that claim an image of gigabytes.
constexpr std::size_t kMostPixels = std::size_t{178956970};

std::uint8_t luma(const std::uint8_t* rgb) {
  // 16 bits after the point, rounded, as Pillow does.
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >>
                                   16);
}

Image with_channels(const Image& in, std::size_t channels) {
  Image out{in.height, in.width, channels, {}};
  const std::size_t pixels = in.height * in.width;
  out.pixels.resize(pixels * channels);
  for (std::size_t i = 0; i < pixels; ++i) {
    const std::uint8_t* from = in.pixels.data() + i * in.channels;
    std::uint8_t* to = out.pixels.data() + i * channels;
    if (channels == 1) {
      *to = in.channels == 1 ? *from : luma(from);
      continue;
    }
    for (std::size_t c = 0; c < 3; ++c) to[c] = from[in.channels == 1 ? 0 : c];
    if (channels == 4) to[3] = in.channels == 4 ? from[3] : 255;
  }
  return out;
}

}  // namespace

void allocate_pixels(Image& image, const std::string& name) {
  PT_CHECK(image.height > 0 && image.width > 0 && image.height <= kMostPixels &&
               image.width <= kMostPixels / image.height,
           kData, "{} is a damaged image: it claims {} x {} pixels", name, image.width,
           image.height);
  image.pixels.resize(image.height * image.width * image.channels);
}

ImageFormat image_format(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min<std::size_t>(bytes.size(), 16));
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return ImageFormat::kPng;
  if (text.starts_with("\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP")
    return ImageFormat::kWebp;
  if (text.starts_with("BM") && text.size() >= 14) return ImageFormat::kBmp;
  const bool blank = text.size() > 2 && (text[2] == '\n' || text[2] == ' ' || text[2] == '\r' ||
                                         text[2] == '\t' || text[2] == '#');
  if (blank && text[0] == 'P' &&
      (text[1] == '2' || text[1] == '3' || text[1] == '5' || text[1] == '6')) {
    return ImageFormat::kPnm;
  }
  return ImageFormat::kNone;
}

bool has_image_name(std::string_view name) {
  constexpr std::string_view kEndings[] = {".png",  ".jpg", ".jpeg", ".jpe", ".jfif",
                                           ".webp", ".bmp", ".ppm",  ".pgm", ".pnm"};
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
}

Image decode_image(std::span<const std::byte> bytes, const std::string& name, std::size_t channels,
                   LeastSize least) {
  Image out;
  switch (image_format(bytes)) {
    case ImageFormat::kPng:
      out = decode_png(bytes, name);
      break;
    case ImageFormat::kJpeg:
      out = decode_jpeg(bytes, name, /*grey=*/channels == 1, least);
      break;
    case ImageFormat::kWebp:
      out = decode_webp(bytes, name);
      break;
    case ImageFormat::kBmp:
      out = decode_bmp(bytes, name);
      break;
    case ImageFormat::kPnm:
      out = decode_pnm(bytes, name);
      break;
    case ImageFormat::kNone:
      PT_CHECK(!bytes.empty(), kData, "{} is an empty file, not an image", name);
      PT_FAIL(kData, "cannot decode {}; supported: PNG, JPEG, WebP, BMP, PPM", name);
  }
  return channels == 0 || channels == out.channels ? std::move(out) : with_channels(out, channels);
}

}  // namespace pipetrain
