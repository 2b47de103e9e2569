// The orientation in an image's EXIF data (CIPA DC-008, tag 0x0112).
#pragma once

#include <cstddef>
#include <span>

#include "data/images/image.h"

namespace pipetrain {

/// The orientation, 1 to 8, from the content of a JPEG file's APP1 segment; 1 (upright) if it is
/// missing or damaged.
int exif_orientation(std::span<const unsigned char> segment);

/// Whether height and width are swapped.
inline bool lies_on_its_side(int orientation) { return orientation >= 5; }

/// The image, turned upright.
Image upright(Image image, int orientation);

}  // namespace pipetrain
