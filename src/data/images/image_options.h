// How images are resized, scaled and augmented.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/images/augment.h"

namespace pipetrain {

/// How an image of another size is fitted.
enum class ImageFit {
  kCrop,     // scaled to cover the target size, then center-cropped
  kStretch,  // scaled in each direction
  kPad,      // scaled to lie within it, zeros around
};

struct ImageOptions {
  ImageFit fit = ImageFit::kCrop;
  bool fit_is_given = false;  // else eval and predict fit images as in training
  Augmentation augmentation;
  std::uint64_t seed = 1;  // of the augmentation
};

/// Values become value / divisor, then (value - mean[c]) / deviation[c] for each channel.
struct PixelScale {
  double divisor = 1;
  std::vector<double> mean, deviation;  // empty, or one for each channel

  bool by_channel() const { return !mean.empty(); }
};

/// All of them, with their names: crop, stretch, pad.
std::vector<std::pair<std::string, ImageFit>> image_fits();
/// Error (kUsage) for a name that none has.
ImageFit image_fit_named(std::string_view name);
std::string name_of(ImageFit fit);

}  // namespace pipetrain
