// Images on their way into a tensor: scaled, changed at random where they are trained on, and laid
// out as the model wants them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/images/image_options.h"
#include "data/rows/column_source.h"

namespace pipetrain {

/// How a sample's shape is an image: (C, H, W), (H, W, C) or (H, W).
struct ImageShape {
  std::size_t channels = 0;
  std::size_t height = 0;
  std::size_t width = 0;
  bool channels_last = false;
};
/// None if the shape is not an image of 1, 3 or 4 channels.
std::optional<ImageShape> image_shape_of(const Shape& sample_shape);
/// A flat shape is that of planes of the size of `first`, which is (channels, height, width).
std::optional<ImageShape> image_shape_of(const Shape& sample_shape, const Shape& first);

class ImageColumn : public ColumnSource {
 public:
  ImageColumn(const ImageShape& shape, ImageOptions options, PixelScale scale, float white)
      : shape_(shape), options_(std::move(options)), scale_(std::move(scale)), white_(white) {}
  void gather(std::span<const std::size_t> indices, Tensor out) const override;
  void gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                        Tensor out) const override;

 protected:
  using Occasion = std::optional<Augmentation::Occasion>;
  /// Writes the sample's planes, divided by the scale's divisor: (channels, height, width).
  virtual void load(std::size_t index, const Occasion& occasion, float* planes) const = 0;
  const ImageShape& shape() const { return shape_; }
  const ImageOptions& options() const { return options_; }
  const PixelScale& scale() const { return scale_; }

 private:
  void gather_all(std::optional<std::uint64_t> step, std::span<const std::size_t> indices,
                  Tensor out) const;

  ImageShape shape_;
  ImageOptions options_;
  PixelScale scale_;
  float white_;  // the largest pixel value after the division; 0 where there is none
};

/// Images that an array holds.
std::unique_ptr<ColumnSource> image_column(ArraySource array, const ImageShape& shape,
                                           const ImageOptions& options, const PixelScale& scale,
                                           float white);

}  // namespace pipetrain
