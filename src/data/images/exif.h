// How a camera was held: the orientation in an image's EXIF data (CIPA DC-008, tag 0x0112).
#pragma once

#include <cstddef>
#include <span>

#include "data/images/image.h"

namespace pipetrain {

/// The orientation, 1 to 8, from the content of a JPEG file's APP1 segment; 1 (upright) where it
/// says none or makes no sense: a photograph is no worse for a damaged note about it.
int exif_orientation(std::span<const unsigned char> segment);

/// Whether height and width change places.
inline bool lies_on_its_side(int orientation) { return orientation >= 5; }

/// The image as it is meant to be seen.
Image upright(Image image, int orientation);

}  // namespace pipetrain
