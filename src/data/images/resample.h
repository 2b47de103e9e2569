// Images in another size: a triangle filter over the pixels that fall on each new one (what
// Pillow calls bilinear, and torchvision bilinear with antialias).
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipetrain {

/// A part of an image, in pixels; need not begin at whole ones.
struct ImageBox {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;
};

/// Pixels with their channels side by side, (height, width, channels), or plane after plane.
template <class Element>
struct Pixels {
  const Element* data = nullptr;
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t channels = 0;
  bool planar = false;
};

/// out: (channels, height, width); `row_stride` and `plane_stride` in elements let it be a part of
/// larger planes. The box must lie in the image.
struct Planes {
  float* data = nullptr;
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t row_stride = 0;
  std::size_t plane_stride = 0;
};
void resample(const Pixels<std::uint8_t>& in, const ImageBox& box, const Planes& out);
void resample(const Pixels<float>& in, const ImageBox& box, const Planes& out);

}  // namespace pipetrain
