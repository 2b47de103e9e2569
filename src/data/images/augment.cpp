#include "data/images/augment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "base/setting.h"

namespace pipetrain {

namespace {

// Separates these random numbers from those of dropout masks and of the sample order.
constexpr std::uint32_t kAugmentStream = 0x4175676d;

/// Four random words for one operation on one sample.
PhiloxBlock draw(const Augmentation::Occasion& occasion, std::size_t operation) {
  PhiloxKey key = philox_key(occasion.seed);
  key.word[1] ^= kAugmentStream;
  return philox(
      key, {{static_cast<std::uint32_t>(occasion.sample), static_cast<std::uint32_t>(occasion.step),
             static_cast<std::uint32_t>(occasion.sample >> 32 ^ occasion.step >> 32 << 16),
             static_cast<std::uint32_t>(operation)}});
}

// Uniform in 1 - amount … 1 + amount.
float factor(std::uint32_t bits, double amount) {
  return 1 + static_cast<float>(amount) * (2 * uniform_float(bits) - 1);
}

void mirror_rows(const ImagePlanes& image) {
  for (std::size_t row = 0; row < image.channels * image.height; ++row) {
    std::reverse(image.data + row * image.width, image.data + (row + 1) * image.width);
  }
}

void mirror_columns(const ImagePlanes& image) {
  for (std::size_t c = 0; c < image.channels; ++c) {
    float* plane = image.data + c * image.height * image.width;
    for (std::size_t y = 0; y < image.height / 2; ++y) {
      std::swap_ranges(plane + y * image.width, plane + (y + 1) * image.width,
                       plane + (image.height - 1 - y) * image.width);
    }
  }
}

// The same as padding with zeros and cutting the old size out at a random place.
void shift(const ImagePlanes& image, const PhiloxBlock& bits, double amount) {
  const auto pad = static_cast<std::int64_t>(amount);
  const auto range = static_cast<std::uint32_t>(2 * pad + 1);
  const std::int64_t down = pad - uniform_below(bits.word[0], range);
  const std::int64_t right = pad - uniform_below(bits.word[1], range);
  const auto height = static_cast<std::int64_t>(image.height);
  const auto width = static_cast<std::int64_t>(image.width);
  std::vector<float> old(image.height * image.width);
  for (std::size_t c = 0; c < image.channels; ++c) {
    float* plane = image.data + c * old.size();
    std::copy_n(plane, old.size(), old.begin());
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t from_y = y - down, from_x = x - right;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        plane[y * width + x] = inside ? old[static_cast<std::size_t>(from_y * width + from_x)] : 0;
      }
    }
  }
}

// A square of zeros around a random pixel, as far as it lies in the image (DeVries and Taylor,
// 2017).
void cut_out(const ImagePlanes& image, const PhiloxBlock& bits, double amount) {
  const auto side = static_cast<std::int64_t>(amount);
  const auto part = [&](std::uint32_t word, std::size_t extent) {
    const std::int64_t begin =
        std::int64_t{uniform_below(word, static_cast<std::uint32_t>(extent))} - side / 2;
    return std::pair{static_cast<std::size_t>(std::max<std::int64_t>(0, begin)),
                     static_cast<std::size_t>(std::clamp<std::int64_t>(
                         begin + side, 0, static_cast<std::int64_t>(extent)))};
  };
  const auto [top, bottom] = part(bits.word[0], image.height);
  const auto [left, right] = part(bits.word[1], image.width);
  for (std::size_t c = 0; c < image.channels; ++c) {
    for (std::size_t y = top; y < bottom; ++y) {
      float* row = image.data + (c * image.height + y) * image.width;
      std::fill(row + left, row + right, 0.0f);
    }
  }
}

// Where values are those of pixels, they stay 0 … white.
void clip(float& value, float white) {
  if (white > 0) value = std::clamp(value, 0.0f, white);
}

// Blends every color with `other(pixel)`: 1 leaves it, 0 gives the other, above 1 goes away from
// it. The fourth channel is no color but the opacity.
template <class Other>
void blend(const ImagePlanes& image, float share, float white, Other&& other) {
  const std::size_t pixels = image.height * image.width;
  for (std::size_t i = 0; i < pixels; ++i) {
    const float base = (1 - share) * other(i);
    for (std::size_t c = 0; c < std::min<std::size_t>(image.channels, 3); ++c) {
      float& value = image.data[c * pixels + i];
      value = share * value + base;
      clip(value, white);
    }
  }
}

float grey_of(const ImagePlanes& image, std::size_t pixel) {
  const std::size_t pixels = image.height * image.width;
  if (image.channels < 3) return image.data[pixel];
  return 0.299f * image.data[pixel] + 0.587f * image.data[pixels + pixel] +
         0.114f * image.data[2 * pixels + pixel];
}

void add_noise(const ImagePlanes& image, const PhiloxBlock& bits, float amount, float white) {
  const float deviation = amount * (white > 0 ? white : 1);
  const PhiloxKey key{{bits.word[0], bits.word[1]}};
  const std::size_t count = image.channels * image.height * image.width;
  for (std::size_t i = 0; i < count; i += 4) {
    const PhiloxBlock block = philox(key, {{static_cast<std::uint32_t>(i), 0, 0, 0}});
    const NormalPair a = normal_pair(block.word[0], block.word[1]);
    const NormalPair b = normal_pair(block.word[2], block.word[3]);
    const float normals[4] = {a.first, a.second, b.first, b.second};
    for (std::size_t k = 0; k < 4 && i + k < count; ++k) {
      image.data[i + k] += deviation * normals[k];
      clip(image.data[i + k], white);
    }
  }
}

}  // namespace

struct Augmentation::Named {
  std::string_view name;
  Kind kind;
  double least, most, usual;  // of its number; usual 0: it takes none; < 0: it must be given
  bool whole;
  std::string_view help;
};

const std::vector<Augmentation::Named>& Augmentation::table() {
  static const std::vector<Named> table = {
      {"flip", Kind::kFlip, 0, 0, 0, false, "mirror half of the images"},
      {"vflip", Kind::kFlipVertically, 0, 0, 0, false, "mirror half of them vertically"},
      {"crop:N", Kind::kCrop, 1, 4096, -1, true, "pad with N zeros, then crop to the old size"},
      {"resized-crop:A", Kind::kResizedCrop, 0.01, 1, 0.08, false,
       "crop at least the fraction A, with aspect ratio 3:4 to 4:3, and resize"},
      {"cutout:N", Kind::kCutout, 1, 4096, -1, true, "set a square of N pixels to zero"},
      {"brightness:X", Kind::kBrightness, 0, 1, -1, false, "multiply by 1-X to 1+X"},
      {"contrast:X", Kind::kContrast, 0, 1, -1, false,
       "multiply the distance from the mean by 1-X to 1+X"},
      {"saturation:X", Kind::kSaturation, 0, 1, -1, false,
       "multiply the distance from grey by 1-X to 1+X"},
      {"noise:X", Kind::kNoise, 0, 10, -1, false, "add normal noise of standard deviation X"},
      {"mixup:A", Kind::kMixup, 0.01, 100, 0.2, false,
       "average two samples and their labels, with shares from Beta(A, A)"},
      {"cutmix:A", Kind::kCutmix, 0.01, 100, 1, false,
       "paste a rectangle of another image, whose share of the labels is its area"},
  };
  return table;
}

std::string Augmentation::names() {
  std::string out;
  for (const Named& named : table()) {
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", named.name, named.help);
  }
  return out;
}

std::vector<std::string> Augmentation::words() {
  std::vector<std::string> out;
  for (const Named& named : table()) out.emplace_back(named.name.substr(0, named.name.find(':')));
  return out;
}

Augmentation Augmentation::parse(std::string_view text) {
  Augmentation out;
  out.text_ = text;
  if (text == "none") text = {};
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(item.size() + 1, text.size()));
    const std::string_view name = item.substr(0, item.find(':'));
    const auto found = std::ranges::find_if(table(), [&](const Named& named) {
      return named.name.substr(0, named.name.find(':')) == name;
    });
    PT_CHECK(found != table().end(), kUsage, "{}: unknown operation \"{}\"; one of: {}",
             setting("augment"), printable(std::string(name)), names());
    double amount = found->usual;
    if (name.size() < item.size()) {
      const std::string_view number = item.substr(name.size() + 1);
      const auto [end, error] =
          std::from_chars(number.data(), number.data() + number.size(), amount);
      PT_CHECK(found->usual != 0 && error == std::errc() && end == number.data() + number.size() &&
                   amount >= found->least && amount <= found->most &&
                   (!found->whole || amount == std::floor(amount)),
               kUsage, "{} {}: \"{}\" is out of range{}", setting("augment"), found->name,
               printable(std::string(number)),
               found->usual == 0 ? "" : fmt::format(", {} to {}", found->least, found->most));
    }
    PT_CHECK(amount >= 0, kUsage, "{} {} needs a number, for example {}:{}", setting("augment"),
             name, name, found->whole ? "4" : "0.2");
    if (found->kind == Kind::kMixup) {
      out.mixing_.mixup = amount;
    } else if (found->kind == Kind::kCutmix) {
      out.mixing_.cutmix = amount;
    } else {
      out.operations_.push_back({found->kind, amount});
    }
  }
  return out;
}

bool Augmentation::moves_pixels() const {
  return std::ranges::any_of(operations_, [](const Operation& operation) {
    return operation.kind == Kind::kFlip || operation.kind == Kind::kFlipVertically ||
           operation.kind == Kind::kCrop || operation.kind == Kind::kResizedCrop;
  });
}

ImageBox Augmentation::choose_box(const Occasion& occasion, const ImageBox& box, std::size_t height,
                                  std::size_t width) const {
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    if (operations_[i].kind != Kind::kResizedCrop) continue;
    // As Inception's: a share of the area and a ratio, the first of ten that fits.
    const double whole = static_cast<double>(height) * static_cast<double>(width);
    for (std::size_t attempt = 0; attempt < 10; ++attempt) {
      const PhiloxBlock bits = draw(occasion, i + 256 * attempt);
      const double least = operations_[i].amount;
      const double area = whole * (least + (1 - least) * uniform_float(bits.word[0]));
      const double ratio =
          std::exp(std::log(3.0 / 4) + 2 * std::log(4.0 / 3) * uniform_float(bits.word[1]));
      const double part_width = std::round(std::sqrt(area * ratio));
      const double part_height = std::round(std::sqrt(area / ratio));
      if (part_width < 1 || part_height < 1 || part_width > static_cast<double>(width) ||
          part_height > static_cast<double>(height)) {
        continue;
      }
      const auto free_x = static_cast<std::uint32_t>(static_cast<double>(width) - part_width + 1);
      const auto free_y = static_cast<std::uint32_t>(static_cast<double>(height) - part_height + 1);
      return {static_cast<double>(uniform_below(bits.word[2], free_x)),
              static_cast<double>(uniform_below(bits.word[3], free_y)), part_width, part_height};
    }
  }
  return box;
}

void Augmentation::apply(const Occasion& occasion, const ImagePlanes& image, float white) const {
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const auto& [kind, amount] = operations_[i];
    const PhiloxBlock bits = draw(occasion, i);
    switch (kind) {
      case Kind::kFlip:
        if (bits.word[0] >> 31) mirror_rows(image);
        break;
      case Kind::kFlipVertically:
        if (bits.word[0] >> 31) mirror_columns(image);
        break;
      case Kind::kCrop:
        shift(image, bits, amount);
        break;
      case Kind::kResizedCrop:
        break;
      case Kind::kCutout:
        cut_out(image, bits, amount);
        break;
      case Kind::kBrightness:
        blend(image, factor(bits.word[0], amount), white, [](std::size_t) { return 0.0f; });
        break;
      case Kind::kContrast: {
        double sum = 0;
        for (std::size_t p = 0; p < image.height * image.width; ++p) sum += grey_of(image, p);
        const auto mean = static_cast<float>(sum / static_cast<double>(image.height * image.width));
        blend(image, factor(bits.word[0], amount), white, [mean](std::size_t) { return mean; });
        break;
      }
      case Kind::kSaturation:
        blend(image, factor(bits.word[0], amount), white,
              [&](std::size_t pixel) { return grey_of(image, pixel); });
        break;
      case Kind::kNoise:
        add_noise(image, bits, static_cast<float>(amount), white);
        break;
      case Kind::kMixup:
      case Kind::kCutmix:
        break;  // of whole batches, not of an image
    }
  }
}

}  // namespace pipetrain
