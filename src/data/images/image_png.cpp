// PNG, by libpng.
#include <png.h>

#include <csetjmp>
#include <cstring>

#include "base/error.h"
#include "data/images/image.h"

namespace pipetrain {

namespace {

struct PngInput {
  std::span<const std::byte> rest;
  char reason[128] = {};
};

void take_png_bytes(png_structp png, png_bytep out, png_size_t count) {
  auto* input = static_cast<PngInput*>(png_get_io_ptr(png));
  if (count > input->rest.size()) png_error(png, "the file is truncated");
  std::memcpy(out, input->rest.data(), count);
  input->rest = input->rest.subspan(count);
}

void leave_png(png_structp png, png_const_charp reason) {
  auto* input = static_cast<PngInput*>(png_get_error_ptr(png));
  std::strncpy(input->reason, reason, sizeof(input->reason) - 1);
  longjmp(png_jmpbuf(png), 1);
}

void ignore_png_warning(png_structp, png_const_charp) {}

enum class PngNumbers { kColors, kStored };

// libpng leaves by longjmp: nothing with a destructor may live in the functions that it leaves.
bool read_png_header(png_structp png, png_infop info, PngNumbers numbers, Image& out) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_read_info(png, info);
  if (numbers == PngNumbers::kStored) {
    png_set_packing(png);  // 1 to 4 bits to bytes
  } else {
    png_set_expand(png);  // palettes, 1 to 4 bits and transparent colours to bytes
  }
  png_set_strip_16(png);  // the upper byte
  png_set_interlace_handling(png);
  if (png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY_ALPHA) png_set_strip_alpha(png);
  if (png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY) png_set_strip_alpha(png);
  png_read_update_info(png, info);
  out.height = png_get_image_height(png, info);
  out.width = png_get_image_width(png, info);
  out.channels = png_get_channels(png, info);
  return true;
}

bool read_png_pixels(png_structp png, png_infop info, png_bytepp rows) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_read_image(png, rows);
  png_read_end(png, info);
  return true;
}

struct PngReader {
  png_structp png;
  png_infop info;
  explicit PngReader(PngInput& input)
      : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, leave_png, ignore_png_warning)),
        info(png ? png_create_info_struct(png) : nullptr) {
    if (info) png_set_read_fn(png, &input, take_png_bytes);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
};

Image decode_numbers(std::span<const std::byte> bytes, const std::string& name,
                     PngNumbers numbers) {
  PngInput input{bytes};
  const PngReader reader(input);
  PT_CHECK(reader.info, kResource, "libpng cannot be set up");
  const auto fail = [&] { PT_FAIL(kData, "{} is a damaged PNG file: {}", name, input.reason); };
  Image out;
  if (!read_png_header(reader.png, reader.info, numbers, out)) fail();
  allocate_pixels(out, name);
  const std::size_t row_bytes = out.width * out.channels;
  PT_CHECK(png_get_rowbytes(reader.png, reader.info) == row_bytes &&
               (out.channels == 1 || out.channels == 3 || out.channels == 4),
           kData, "{} is a PNG file of {} channels, which is not supported", name, out.channels);
  std::vector<png_bytep> rows(out.height);
  for (std::size_t y = 0; y < out.height; ++y) rows[y] = out.pixels.data() + y * row_bytes;
  if (!read_png_pixels(reader.png, reader.info, rows.data())) fail();
  return out;
}

}  // namespace

Image decode_png(std::span<const std::byte> bytes, const std::string& name) {
  return decode_numbers(bytes, name, PngNumbers::kColors);
}

Image decode_mask(std::span<const std::byte> bytes, const std::string& name) {
  PT_CHECK(image_format(bytes) == ImageFormat::kPng, kData, "the mask {} is no PNG file", name);
  constexpr std::size_t kBits = 24;  // where a PNG file has the bits of its numbers
  PT_CHECK(bytes.size() > kBits && std::to_integer<int>(bytes[kBits]) <= 8, kData,
           "the mask {} has numbers of 16 bits; save it with 8", name);
  Image out = decode_numbers(bytes, name, PngNumbers::kStored);
  PT_CHECK(
      out.channels == 1, kData,
      "the mask {} has colors; masks are grey or have a palette, and their numbers are classes",
      name);
  return out;
}

}  // namespace pipetrain
