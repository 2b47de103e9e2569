#include "data/loading/mixed_dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "base/setting.h"

namespace pipetrain {

namespace {

// Separates these random numbers from those of other uses of the seed.
constexpr std::uint64_t kMixStream = 0x4d697875;

/// Gamma(shape, 1), by Marsaglia and Tsang ("A Simple Method for Generating Gamma Variables",
/// 2000).
double draw_gamma(RandomStream& random, double shape) {
  if (shape < 1) return draw_gamma(random, shape + 1) * std::pow(1.0 - random.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1.0 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v;
  }
}

double draw_beta(RandomStream& random, double shape) {
  const double a = draw_gamma(random, shape), b = draw_gamma(random, shape);
  return a + b > 0 ? a / (a + b) : 0.5;
}

std::size_t pixel(double share, std::size_t extent) {
  return static_cast<std::size_t>(std::clamp(std::round(share * static_cast<double>(extent)), 0.0,
                                             static_cast<double>(extent)));
}

/// a = share * a + (1 - share) * b
void average(float* a, const float* b, std::size_t count, double share) {
  const auto mine = static_cast<float>(share), other = static_cast<float>(1 - share);
  for (std::size_t i = 0; i < count; ++i) a[i] = mine * a[i] + other * b[i];
}

}  // namespace

MixedDataset::MixedDataset(std::shared_ptr<const Dataset> whole, const Mixing& mixing,
                           std::uint64_t seed, const MixedLabels& labels)
    : whole_(std::move(whole)),
      mixing_(mixing),
      seed_(seed),
      labels_(labels),
      columns_(whole_->columns().begin(), whole_->columns().end()) {
  for (std::size_t i = 0; !is_label(i); ++i) {
    const Column& input = columns_[i];
    PT_CHECK(input.dtype == DType::kFloat32, kUsage,
             "{}: mixup and cutmix need inputs of real numbers, \"{}\" is {}", setting("augment"),
             printable(input.name), name_of(input.dtype));
    const auto image = image_shape_of(input.sample_shape);
    PT_CHECK(image || mixing_.cutmix == 0, kUsage,
             "{}: cutmix needs images, the input \"{}\" is {}; mixup takes any numbers",
             setting("augment"), printable(input.name), input.sample_shape.text());
    images_.push_back(image.value_or(ImageShape{}));
  }
  Column& label = columns_.back();
  if (labels_.classes > 0) {
    PT_CHECK(label.sample_shape.count() == 1, kUsage,
             "{}: mixup and cutmix need one label per sample, these are {}", setting("augment"),
             label.sample_shape.text());
    label.dtype = DType::kFloat32;
    label.sample_shape = Shape{labels_.classes};
  }
  PT_CHECK(
      mixing_.cutmix == 0 || label.sample_shape.rank() < 2 || label.sample_shape.count() == 1,
      kUsage,
      "{}: cutmix mixes labels by the area of the rectangle, which fits no labels of pixels as "
      "these, {}; mixup does",
      setting("augment"), label.sample_shape.text());
}

MixedDataset::Rectangle MixedDataset::Mixture::rectangle_of(const ImageShape& image) const {
  const double half = std::sqrt(1 - share) / 2;
  return {pixel(y - half, image.height), pixel(y + half, image.height),
          pixel(x - half, image.width), pixel(x + half, image.width)};
}

MixedDataset::Mixture MixedDataset::mixture_of(std::uint64_t step) const {
  RandomStream random(seed_, kMixStream + (step << 32));
  Mixture out;
  out.pastes = mixing_.cutmix > 0 && (mixing_.mixup == 0 || random.uniform() < 0.5f);
  out.share = draw_beta(random, out.pastes ? mixing_.cutmix : mixing_.mixup);
  if (!out.pastes) return out;
  out.x = random.uniform();
  out.y = random.uniform();
  return out;
}

/// What a sample keeps of its label; a pasted rectangle may lie partly outside its image.
double MixedDataset::label_share(const Mixture& mixture) const {
  if (!mixture.pastes) return mixture.share;
  const ImageShape& image = images_.front();
  return 1 - static_cast<double>(mixture.rectangle_of(image).area()) /
                 static_cast<double>(image.height * image.width);
}

void MixedDataset::gather(std::span<const std::size_t> indices, std::size_t column,
                          Tensor out) const {
  if (is_label(column)) return gather_labels(indices, out);
  whole_->gather(indices, column, out);
}

void MixedDataset::gather_labels(std::span<const std::size_t> indices, Tensor out) const {
  const std::size_t column = columns_.size() - 1;
  if (labels_.classes < 0) return whole_->gather(indices, column, out);
  HostTensor numbers(whole_->columns()[column].batch_type(indices.size()));
  whole_->gather(indices, column, numbers.view());
  const auto classes = static_cast<std::size_t>(labels_.classes);
  std::fill_n(out.as<float>(), indices.size() * classes,
              static_cast<float>(labels_.smoothing / static_cast<double>(classes)));
  float* row = out.as<float>();
  for (const std::int64_t number : numbers.to_int64s()) {
    PT_CHECK(number >= 0 && number < labels_.classes && number != labels_.ignored, kData,
             "mixup and cutmix need a class for every sample, but a label is {}{}", number,
             number == labels_.ignored ? ", which is ignored" : "");
    row[number] += static_cast<float>(1 - labels_.smoothing);
    row += classes;
  }
}

void MixedDataset::gather_augmented(std::uint64_t step, std::span<const std::size_t> indices,
                                    std::size_t column, Tensor out) const {
  const bool labels = is_label(column);
  if (labels) {
    gather_labels(indices, out);
  } else {
    whole_->gather_augmented(step, indices, column, out);
  }
  const auto count = static_cast<std::size_t>(columns_[column].sample_shape.count());
  const std::vector<float> own(out.as<float>(), out.as<float>() + indices.size() * count);
  const Mixture mixture = mixture_of(step);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const float* other =
        own.data() + count * shuffled_index(seed_ ^ kMixStream, step, indices.size(), i);
    float* mine = out.as<float>() + count * i;
    if (labels) {
      average(mine, other, count, label_share(mixture));
      continue;
    }
    if (!mixture.pastes) {
      average(mine, other, count, mixture.share);
      continue;
    }
    const ImageShape& image = images_[column];
    const Rectangle at = mixture.rectangle_of(image);
    const std::size_t planes = image.channels_last ? 1 : image.channels;
    const std::size_t across = image.channels_last ? image.channels : 1;
    for (std::size_t row = 0; row < planes * image.height; ++row) {
      const std::size_t y = row % image.height, begin = row * image.width;
      if (y < at.top || y >= at.bottom) continue;
      std::copy(other + (begin + at.left) * across, other + (begin + at.right) * across,
                mine + (begin + at.left) * across);
    }
  }
}

}  // namespace pipetrain
