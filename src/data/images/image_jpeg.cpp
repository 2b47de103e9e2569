// JPEG, by libjpeg-turbo. jpeglib.h needs cstdio before it.
// clang-format off
#include <cstdio>

#include <jerror.h>
#include <jpeglib.h>
// clang-format on

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/images/exif.h"
#include "data/images/image.h"

namespace pipetrain {

namespace {

// Files with more scans are attacks on the decoding time.
constexpr int kMostScans = 256;

struct JpegReader {
  jpeg_decompress_struct state{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf leave{};
  char reason[JMSG_LENGTH_MAX] = {};

  ~JpegReader() { jpeg_destroy_decompress(&state); }
};

JpegReader& reader_of(j_common_ptr state) { return *static_cast<JpegReader*>(state->client_data); }

void leave_jpeg(j_common_ptr state) {
  JpegReader& reader = reader_of(state);
  state->err->format_message(state, reader.reason);
  std::longjmp(reader.leave, 1);
}

// The decoder would go on and fill what is missing with grey. Harmless irregularities pass.
void weigh_jpeg_warning(j_common_ptr state, int level) {
  if (level >= 0) return;
  const int code = state->err->msg_code;
  if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
      code == JWRN_MUST_RESYNC) {
    leave_jpeg(state);
  }
}

void count_jpeg_scans(j_common_ptr state) {
  const auto* decompress = reinterpret_cast<j_decompress_ptr>(state);
  if (decompress->input_scan_number <= kMostScans) return;
  JpegReader& reader = reader_of(state);
  std::strncpy(reader.reason, "it has too many scans", sizeof(reader.reason) - 1);
  std::longjmp(reader.leave, 1);
}

// libjpeg leaves by longjmp: nothing with a destructor may live in the functions that it leaves.
bool read_jpeg_header(JpegReader& reader, std::span<const std::byte> bytes, bool grey,
                      LeastSize least, Image& out, int& orientation) {
  if (setjmp(reader.leave)) return false;
  jpeg_decompress_struct& state = reader.state;
  jpeg_create_decompress(&state);
  state.client_data = &reader;
  reader.progress.progress_monitor = count_jpeg_scans;
  state.progress = &reader.progress;
  jpeg_mem_src(&state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_save_markers(&state, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(&state, TRUE);
  for (const jpeg_marker_struct* marker = state.marker_list; marker && orientation == 1;
       marker = marker->next)
    orientation = exif_orientation({marker->data, marker->data_length});
  if (lies_on_its_side(orientation)) std::swap(least.height, least.width);
  const bool inks = state.jpeg_color_space == JCS_CMYK || state.jpeg_color_space == JCS_YCCK;
  const bool no_colour =
      state.jpeg_color_space == JCS_GRAYSCALE || (grey && state.jpeg_color_space == JCS_YCbCr);
  state.out_color_space = inks ? JCS_CMYK : no_colour ? JCS_GRAYSCALE : JCS_RGB;
  state.scale_num = 1;
  state.scale_denom = 1;
  for (const unsigned denominator : {8u, 4u, 2u}) {
    const bool enough = least.height > 0 && state.image_height / denominator >= least.height &&
                        state.image_width / denominator >= least.width;
    if (!enough) continue;
    state.scale_denom = denominator;
    break;
  }
  jpeg_calc_output_dimensions(&state);
  out.height = state.output_height;
  out.width = state.output_width;
  out.channels = inks ? 4 : static_cast<std::size_t>(state.output_components);
  return true;
}

bool read_jpeg_pixels(JpegReader& reader, Image& out) {
  if (setjmp(reader.leave)) return false;
  jpeg_decompress_struct& state = reader.state;
  jpeg_start_decompress(&state);
  const std::size_t row_bytes = out.width * out.channels;
  while (state.output_scanline < state.output_height) {
    JSAMPROW row = out.pixels.data() + state.output_scanline * row_bytes;
    jpeg_read_scanlines(&state, &row, 1);
  }
  jpeg_finish_decompress(&state);
  return true;
}

// Adobe's files hold the complements of the four inks.
Image colours_of_inks(const Image& inks, bool inverted) {
  Image out{inks.height, inks.width, 3, {}};
  out.pixels.resize(out.height * out.width * 3);
  for (std::size_t i = 0; i < out.height * out.width; ++i) {
    const std::uint8_t* from = inks.pixels.data() + 4 * i;
    const unsigned light = inverted ? from[3] : 255u - from[3];
    for (std::size_t c = 0; c < 3; ++c) {
      const unsigned share = inverted ? from[c] : 255u - from[c];
      out.pixels[3 * i + c] = static_cast<std::uint8_t>((share * light + 127) / 255);
    }
  }
  return out;
}

}  // namespace

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& name, bool grey,
                  LeastSize least) {
  JpegReader reader;
  reader.state.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = leave_jpeg;
  reader.errors.emit_message = weigh_jpeg_warning;
  reader.state.client_data = &reader;
  const auto fail = [&] { PT_FAIL(kData, "{} is a damaged JPEG file: {}", name, reader.reason); };
  Image out;
  int orientation = 1;
  if (!read_jpeg_header(reader, bytes, grey, least, out, orientation)) fail();
  allocate_pixels(out, name);
  if (!read_jpeg_pixels(reader, out)) fail();
  if (reader.state.out_color_space == JCS_CMYK)
    out = colours_of_inks(out, reader.state.saw_Adobe_marker != 0);
  return upright(std::move(out), orientation);
}

}  // namespace pipetrain
