#include "data/formats/image_rows.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/rows/image_column.h"

namespace pipetrain {

namespace {

// Where an image goes in the target size, and which part of it.
struct Placing {
  ImageBox box;
  std::size_t top = 0, left = 0, height = 0, width = 0;
};

Placing place(const Image& image, const ImageShape& want, ImageFit fit) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const auto want_height = static_cast<double>(want.height);
  const auto want_width = static_cast<double>(want.width);
  Placing out{{0, 0, width, height}, 0, 0, want.height, want.width};
  if (fit == ImageFit::kCrop) {
    const double scale = std::min(height / want_height, width / want_width);
    out.box.width = std::min(width, scale * want_width);
    out.box.height = std::min(height, scale * want_height);
    out.box.left = (width - out.box.width) / 2;
    out.box.top = (height - out.box.height) / 2;
  }
  if (fit == ImageFit::kPad) {
    const double scale = std::max(height / want_height, width / want_width);
    const auto part = [&](double extent, std::size_t most) {
      return std::clamp<std::size_t>(static_cast<std::size_t>(std::lround(extent / scale)), 1,
                                     most);
    };
    out.height = part(height, want.height);
    out.width = part(width, want.width);
    out.top = (want.height - out.height) / 2;
    out.left = (want.width - out.width) / 2;
  }
  return out;
}

void check_size(const std::optional<RequiredSize>& required, const Image& image,
                const ImageStore& store, std::size_t index) {
  PT_CHECK(!required || (image.height == required->height && image.width == required->width), kData,
           "{} has {} x {} pixels, its mask {} x {}", store.locate(index), image.width,
           image.height, required->width, required->height);
}

class DecodedImages final : public ImageColumn {
 public:
  DecodedImages(std::shared_ptr<const ImageStore> store, const ImageShape& shape,
                const ImageOptions& options, const PixelScale& scale,
                std::optional<RequiredSize> required)
      : ImageColumn(shape, options, scale, static_cast<float>(255 / scale.divisor)),
        store_(std::move(store)),
        required_(required) {}

 protected:
  void load(std::size_t index, const Occasion& occasion, float* planes) const override {
    const ImageShape& want = shape();
    const FileBytes file = store_->read(index);
    // A random part may need all pixels; the whole does not.
    const LeastSize least =
        occasion || required_ ? LeastSize{} : LeastSize{want.height, want.width};
    const Image image = read_and_check(
        [&] { return decode_image(file.bytes(), store_->locate(index), want.channels, least); },
        [&] { file.check(); });
    check_size(required_, image, *store_, index);
    Placing placing = place(image, want, options().fit);
    if (occasion) {
      const ImageBox part =
          options().augmentation.choose_box(*occasion, placing.box, image.height, image.width);
      if (part.width != placing.box.width || part.height != placing.box.height ||
          part.left != placing.box.left || part.top != placing.box.top) {
        placing = {part, 0, 0, want.height, want.width};
      }
    }
    const std::size_t pixels = want.height * want.width;
    if (placing.height != want.height || placing.width != want.width) {
      std::fill(planes, planes + want.channels * pixels, 0.0f);
    }
    resample(Pixels<std::uint8_t>{image.pixels.data(), image.height, image.width, image.channels,
                                  /*planar=*/false},
             placing.box,
             {planes + placing.top * want.width + placing.left, placing.height, placing.width,
              want.width, pixels});
    const auto divisor = static_cast<float>(scale().divisor);
    if (divisor == 1) return;
    for (std::size_t i = 0; i < want.channels * pixels; ++i) planes[i] /= divisor;
  }

 private:
  std::shared_ptr<const ImageStore> store_;
  std::optional<RequiredSize> required_;
};

class ImageRows final : public RowSource {
 public:
  ImageRows(std::shared_ptr<const ImageStore> store, std::optional<RequiredSize> required)
      : store_(std::move(store)), required_(required) {
    const Image first = first_that_decodes();
    first_ = {first.channels, first.height, first.width, false};
  }
  std::size_t rows() const override { return store_->size(); }
  DType dtype() const override { return DType::kUint8; }
  Shape sample_shape() const override {
    return {static_cast<std::int64_t>(first_.channels), static_cast<std::int64_t>(first_.height),
            static_cast<std::int64_t>(first_.width)};
  }
  std::string locate(std::size_t row) const override { return store_->locate(row); }
  std::string name(std::size_t row) const override { return store_->name(row); }
  void check(std::size_t row) const override { decode(row); }

  std::unique_ptr<ColumnSource> bind(const Shape& want, const ImageOptions& options,
                                     const PixelScale& scale, std::string& how) const override {
    const std::optional<ImageShape> shape = image_shape_of(want, sample_shape());
    if (!shape) return nullptr;
    constexpr std::string_view kFits[] = {"center-cropped", "stretched", "padded with zeros"};
    how = fmt::format(", decoded to {} x {} x {}; other sizes are {}", shape->channels,
                      shape->height, shape->width, kFits[static_cast<std::size_t>(options.fit)]);
    return std::make_unique<DecodedImages>(store_, *shape, options, scale, required_);
  }

 private:
  Image first_that_decodes() const {
    std::optional<Error> of_first;
    for (std::size_t row = 0; row < rows(); ++row) {
      try {
        return decode(row);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kData) throw;
        if (!of_first) of_first = error;
      }
    }
    throw *of_first;
  }

  Image decode(std::size_t row) const {
    Image image = decode_image(store_->read(row).bytes(), store_->locate(row));
    check_size(required_, image, *store_, row);
    return image;
  }

  std::shared_ptr<const ImageStore> store_;
  std::optional<RequiredSize> required_;
  ImageShape first_;
};

}  // namespace

std::string ImageFiles::locate(std::size_t index) const {
  return fmt::format("\"{}\"", printable(files_[index]));
}

std::string ArchivedImages::locate(std::size_t index) const { return names_[index]; }

std::shared_ptr<const RowSource> make_image_rows(std::shared_ptr<const ImageStore> store,
                                                 std::optional<RequiredSize> required) {
  return std::make_shared<const ImageRows>(std::move(store), required);
}

}  // namespace pipetrain
