// Random changes of training samples: images are flipped, cropped, …, batches mixed; a pure
// function of (seed, step, sample), so that no bit depends on workers, stages or on where a run was
// resumed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/images/resample.h"

namespace pipetrain {

/// One image, planes of pixels: (channels, height, width).
struct ImagePlanes {
  float* data = nullptr;
  std::size_t channels = 0;
  std::size_t height = 0;
  std::size_t width = 0;
};

/// The A of Beta(A, A), from which the share of a sample in its mixture is drawn; 0: off.
struct Mixing {
  double mixup = 0, cutmix = 0;

  bool any() const { return mixup > 0 || cutmix > 0; }
};

class Augmentation {
 public:
  /// A list as "flip,crop:4,cutout:8"; names, values and their defaults: see names(). Error kUsage.
  static Augmentation parse(std::string_view text);
  /// "flip, vflip, crop:N, …" with what each does, for help and errors.
  static std::string names();
  /// The names alone.
  static std::vector<std::string> words();
  /// Whether single images stay as they are.
  bool empty() const { return operations_.empty(); }
  /// Whether pixels may change their places.
  bool moves_pixels() const;
  /// How the samples of a batch are mixed with one another (data/loading/mixed_dataset.h).
  const Mixing& mixing() const { return mixing_; }
  /// As it was parsed.
  const std::string& text() const { return text_; }

  /// Which sample of which step is to be changed.
  struct Occasion {
    std::uint64_t seed = 0;
    std::uint64_t step = 0;
    std::uint64_t sample = 0;
  };
  /// resized-crop's part of an image of this size; else the whole `box`.
  ImageBox choose_box(const Occasion& occasion, const ImageBox& box, std::size_t height,
                      std::size_t width) const;
  /// All other operations, in the order of the list. Values are 0 … white where they are pixels;
  /// white 0: any numbers.
  void apply(const Occasion& occasion, const ImagePlanes& image, float white) const;

 private:
  enum class Kind {
    kFlip,
    kFlipVertically,
    kCrop,
    kResizedCrop,
    kCutout,
    kBrightness,
    kContrast,
    kSaturation,
    kNoise,
    kMixup,
    kCutmix
  };
  struct Named;
  static const std::vector<Named>& table();
  struct Operation {
    Kind kind;
    double amount;
  };
  std::vector<Operation> operations_;
  Mixing mixing_;
  std::string text_;
};

}  // namespace pipetrain
