// WebP, by libwebp.
#include <webp/decode.h>

#include "base/error.h"
#include "data/images/image.h"

namespace pipetrain {

Image decode_webp(std::span<const std::byte> bytes, const std::string& name) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  PT_CHECK(WebPGetFeatures(data, bytes.size(), &features) == VP8_STATUS_OK, kData,
           "{} is a damaged WebP file", name);
  PT_CHECK(!features.has_animation, kData, "{} is a moving WebP image, which is not supported",
           name);
  Image out;
  out.height = static_cast<std::size_t>(features.height);
  out.width = static_cast<std::size_t>(features.width);
  out.channels = features.has_alpha ? 4 : 3;
  allocate_pixels(out, name);
  const auto decode = features.has_alpha ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  const auto stride = static_cast<int>(out.width * out.channels);
  PT_CHECK(decode(data, bytes.size(), out.pixels.data(), out.pixels.size(), stride), kData,
           "{} is a damaged WebP file", name);
  return out;
}

}  // namespace pipetrain
