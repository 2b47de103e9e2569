#include "data/rows/image_column.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/element.h"

namespace pipetrain {

namespace {

bool are_channels(std::int64_t count) { return count == 1 || count == 3 || count == 4; }

class ArrayImages final : public ImageColumn {
 public:
  ArrayImages(ArraySource array, const ImageShape& shape, const ImageOptions& options,
              const PixelScale& scale, float white)
      : ImageColumn(shape, options, scale, white), array_(std::move(array)) {}

 protected:
  void load(std::size_t index, const Occasion& occasion, float* planes) const override {
    const ImageShape& want = shape();
    const std::size_t pixels = want.height * want.width;
    const auto count = static_cast<std::int64_t>(array_.count);
    std::vector<float> sample(array_.count);
    array_.gather({&index, 1},
                  {{DType::kFloat32, Shape{1, count}, Layout::kRowMajor}, sample.data()});
    const ImageBox whole{0, 0, static_cast<double>(want.width), static_cast<double>(want.height)};
    const ImageBox box =
        occasion ? options().augmentation.choose_box(*occasion, whole, want.height, want.width)
                 : whole;
    resample(
        Pixels<float>{sample.data(), want.height, want.width, want.channels, !want.channels_last},
        box, {planes, want.height, want.width, want.width, pixels});
  }

 private:
  ArraySource array_;
};

}  // namespace

std::vector<std::pair<std::string, ImageFit>> image_fits() {
  return {{"crop", ImageFit::kCrop}, {"stretch", ImageFit::kStretch}, {"pad", ImageFit::kPad}};
}

ImageFit image_fit_named(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [text, fit] : image_fits()) {
    if (text == name) return fit;
    names.push_back(text);
  }
  PT_FAIL(kUsage, "{} cannot be \"{}\"; one of: {}", setting("resize"),
          printable(std::string(name)), fmt::join(names, ", "));
}

std::string name_of(ImageFit fit) {
  for (const auto& [text, value] : image_fits()) {
    if (value == fit) return text;
  }
  PT_FAIL(kInternal, "unknown fit of images {}", static_cast<int>(fit));
}

std::optional<ImageShape> image_shape_of(const Shape& shape) {
  const auto extent = [&](std::size_t axis) { return static_cast<std::size_t>(shape[axis]); };
  if (std::ranges::any_of(shape, [](std::int64_t dim) { return dim <= 0; })) return std::nullopt;
  if (shape.rank() == 2) return ImageShape{1, extent(0), extent(1), false};
  if (shape.rank() != 3) return std::nullopt;
  if (are_channels(shape[0])) return ImageShape{extent(0), extent(1), extent(2), false};
  if (are_channels(shape[2])) return ImageShape{extent(2), extent(0), extent(1), true};
  return std::nullopt;
}

std::optional<ImageShape> image_shape_of(const Shape& shape, const Shape& first) {
  const std::int64_t pixels = first[1] * first[2], channels = shape.count() / pixels;
  const bool is_flat = shape.rank() == 1 && shape.count() % pixels == 0 && are_channels(channels);
  return image_shape_of(is_flat ? Shape{channels, first[1], first[2]} : shape);
}

void ImageColumn::gather(std::span<const std::size_t> indices, Tensor out) const {
  gather_all(std::nullopt, indices, out);
}

void ImageColumn::gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                                   Tensor out) const {
  gather_all(step, indices, out);
}

void ImageColumn::gather_all(std::optional<std::uint64_t> step,
                             std::span<const std::size_t> indices, Tensor out) const {
  const std::size_t pixels = shape_.height * shape_.width, count = shape_.channels * pixels;
  std::vector<float> planes(count), laid_out(shape_.channels_last ? count : 0);
  const bool augments = step && !options_.augmentation.empty();
  auto* to = out.as<std::byte>();
  for (const std::size_t index : indices) {
    Occasion occasion;
    if (augments) occasion = {options_.seed, *step, index};
    load(index, occasion, planes.data());
    if (occasion) {
      options_.augmentation.apply(
          *occasion, {planes.data(), shape_.channels, shape_.height, shape_.width}, white_);
    }
    for (std::size_t c = 0; c < shape_.channels && scale_.by_channel(); ++c) {
      const auto mean = static_cast<float>(scale_.mean[c]);
      const auto factor = static_cast<float>(1 / scale_.deviation[c]);
      for (std::size_t i = 0; i < pixels; ++i) {
        planes[c * pixels + i] = (planes[c * pixels + i] - mean) * factor;
      }
    }
    if (!is_float(out.type.dtype)) {
      for (float& value : planes) value = std::round(value);
    }
    const float* from = planes.data();
    if (shape_.channels_last) {
      for (std::size_t c = 0; c < shape_.channels; ++c) {
        for (std::size_t i = 0; i < pixels; ++i) {
          laid_out[i * shape_.channels + c] = planes[c * pixels + i];
        }
      }
      from = laid_out.data();
    }
    convert_elements(from, DType::kFloat32, to, out.type.dtype, count, 1);
    to += count * size_of(out.type.dtype);
  }
}

std::unique_ptr<ColumnSource> image_column(ArraySource array, const ImageShape& shape,
                                           const ImageOptions& options, const PixelScale& scale,
                                           float white) {
  return std::make_unique<ArrayImages>(std::move(array), shape, options, scale, white);
}

}  // namespace pipetrain
