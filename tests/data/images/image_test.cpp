// Images whose bytes Pillow wrote, and what Pillow reads from them.
#include "data/images/image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "data/images/augment.h"
#include "data/images/resample.h"
#include "support/data_files.h"
#include "support/image_bytes.h"

namespace pipetrain {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Image decode(const std::string& bytes, std::size_t channels = 0) {
  return decode_image(bytes_of(bytes), "p", channels);
}

using Pixels3 = std::vector<std::uint8_t>;
const Pixels3 kSix = {255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30, 40, 50, 60, 70, 80, 90};

TEST(Image, ReadsWhatPillowWrote) {
  const std::string ppm = "P6 3 2 255\n" + std::string(kSix.begin(), kSix.end());
  const std::string ascii =
      "P3\n# made by hand\n3 2\n255\n255 0 0 0 255 0 0 0 255\n10 20 30 40 50 60 70 80 90\n";
  for (const std::string& file : {kPng, kWebp, kBmp, ppm, ascii}) {
    const Image image = decode(file);
    EXPECT_EQ(image.height, 2u);
    EXPECT_EQ(image.width, 3u);
    EXPECT_EQ(image.channels, 3u);
    EXPECT_EQ(image.pixels, kSix);
  }
  const Image grey = decode("P5 2 1 1000\n" + from_hex("000003e8"));
  EXPECT_EQ(grey.channels, 1u);
  EXPECT_EQ(grey.pixels, (Pixels3{0, 255}));
}

TEST(Image, WebpWithOpacityAndWithLoss) {
  EXPECT_EQ(decode(kWebpWithOpacity).pixels, (Pixels3{10, 20, 30, 40}));
  EXPECT_EQ(decode(kWebpWithOpacity, 3).pixels, (Pixels3{10, 20, 30}));
  const Image lossy = decode(kLossyWebp);
  EXPECT_EQ(lossy.height, 16u);
  const std::uint8_t* pixel = &lossy.pixels[(8 * 16 + 8) * 3];
  EXPECT_EQ(Pixels3(pixel, pixel + 3), (Pixels3{201, 100, 50}));
}

TEST(Image, DamagedAndMovingWebpAreRefused) {
  EXPECT_THROW(decode(kMovingWebp), Error);
  for (std::size_t size = 12; size < kWebp.size() - 1; ++size)
    EXPECT_THROW(decode(kWebp.substr(0, size)), Error) << size;
}

/// A JPEG file with EXIF data behind its first marker.
std::string with_orientation(const std::string& jpeg, int orientation, bool little) {
  const auto number = [little](std::size_t value, std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i)
      out += static_cast<char>(value >> 8 * (little ? i : count - 1 - i) & 0xff);
    return out;
  };
  const std::string tiff = std::string(little ? "II" : "MM") + number(42, 2) + number(8, 4) +
                           number(2, 2) + number(0x0100, 2) + number(4, 2) + number(1, 4) +
                           number(9, 4) + number(0x0112, 2) + number(3, 2) + number(1, 4) +
                           number(static_cast<std::size_t>(orientation), 2) + number(0, 2) +
                           number(0, 4);
  const std::size_t length = 2 + 6 + tiff.size();
  std::string segment = "\xff\xe1";
  segment += static_cast<char>(length >> 8);
  segment += static_cast<char>(length & 0xff);
  return jpeg.substr(0, 2) + segment + std::string("Exif\0\0", 6) + tiff + jpeg.substr(2);
}

TEST(Image, JpegIsTurnedAsItsCameraWasHeld) {
  const Image lying = decode(kColourJpeg);
  const std::size_t h = lying.height, w = lying.width;
  // By the standard's table: where the file's row 0 and column 0 are seen.
  const auto seen = [&](int orientation, std::size_t r,
                        std::size_t c) -> std::pair<std::size_t, std::size_t> {
    switch (orientation) {
      case 2:
        return {r, w - 1 - c};  // top, right
      case 3:
        return {h - 1 - r, w - 1 - c};  // bottom, right
      case 4:
        return {h - 1 - r, c};  // bottom, left
      case 5:
        return {c, r};  // left, top
      case 6:
        return {c, h - 1 - r};  // right, top
      case 7:
        return {w - 1 - c, h - 1 - r};  // right, bottom
      case 8:
        return {w - 1 - c, r};  // left, bottom
      default:
        return {r, c};
    }
  };
  for (int orientation = 0; orientation <= 9; ++orientation) {
    for (const bool little : {false, true}) {
      const Image out = decode(with_orientation(kColourJpeg, orientation, little));
      const bool sideways = orientation >= 5 && orientation <= 8;
      ASSERT_EQ(out.height, sideways ? w : h);
      ASSERT_EQ(out.width, sideways ? h : w);
      for (std::size_t r = 0; r < h; ++r) {
        for (std::size_t c = 0; c < w; ++c) {
          const auto [row, column] = seen(orientation, r, c);
          for (std::size_t k = 0; k < 3; ++k)
            ASSERT_EQ(out.pixels[(row * out.width + column) * 3 + k],
                      lying.pixels[(r * w + c) * 3 + k])
                << orientation;
        }
      }
    }
  }
  // Damaged notes leave the image alone.
  const std::string noted = with_orientation(kColourJpeg, 6, true);
  std::string cut = noted;
  cut[2 + 4 + 6 + 8] = '\x7f';  // so many entries
  cut[2 + 4 + 6 + 4] = '\x70';  // which begin behind the end
  EXPECT_EQ(decode(cut).pixels, lying.pixels);
}

TEST(Image, JpegAsLibjpegOfPillow) {
  const Image grey = decode(kGreyJpeg);
  ASSERT_EQ(grey.channels, 1u);
  ASSERT_EQ(grey.pixels.size(), 15u * 9);
  const Pixels3 row = {0, 16, 32, 48, 64, 80, 96, 112, 127, 145, 159, 176, 193, 208, 223};
  EXPECT_EQ(Pixels3(grey.pixels.begin(), grey.pixels.begin() + 15), row);
  const Image colour = decode(kColourJpeg);
  ASSERT_EQ(colour.channels, 3u);
  EXPECT_EQ(Pixels3(colour.pixels.begin(), colour.pixels.begin() + 9),
            (Pixels3{16, 248, 138, 18, 237, 133, 28, 223, 129}));
  // Half of it is decoded where that is enough.
  const Image half = decode_image(bytes_of(kColourJpeg), "p", 3, {8, 8});
  EXPECT_EQ(half.height, 8u);
  EXPECT_EQ(decode_image(bytes_of(kColourJpeg), "p", 3, {9, 8}).height, 16u);
}

TEST(Image, ChannelsAreWhatIsAskedFor) {
  EXPECT_EQ(decode(kPng, 1).pixels, (Pixels3{76, 150, 29, 18, 48, 78}));  // Pillow's convert("L")
  const Pixels3 four = decode(kPng, 4).pixels;
  EXPECT_EQ(Pixels3(four.begin(), four.begin() + 8), (Pixels3{255, 0, 0, 255, 0, 255, 0, 255}));
  EXPECT_EQ(decode("P5 1 1 255\n\x07", 3).pixels, (Pixels3{7, 7, 7}));
}

TEST(Image, DamagedOnesAreErrorsThatNameThem) {
  const std::string bad[] = {"",
                             "GIF89a",
                             kPng.substr(0, 40),
                             kBmp.substr(0, 60),
                             kGreyJpeg.substr(0, 300),
                             kColourJpeg.substr(0, kColourJpeg.size() - 12),
                             "P6 3 2 255\nabc",
                             "P6 99999999 99999999 255\n",
                             "P5 2 2 0\n1234",
                             "P2 2 1 9\n8 10"};
  for (const std::string& file : bad) {
    expect_contains(data_error([&] { decode_image(bytes_of(file), "cats/1.png"); }), "cats/1.png");
  }
  std::string wrong = kPng;
  wrong[50] ^= 1;
  expect_contains(data_error([&] { decode(wrong); }), "damaged PNG");
}

// Every cut and every changed byte: an error or an image, never more than that.
TEST(Image, SurvivesAnyDamage) {
  for (const std::string& file :
       {kPng, kBmp, kGreyJpeg, kColourJpeg, std::string("P3 1 1 9 1 2 3")}) {
    const auto attempt = [](const std::string& bytes) {
      try {
        const Image image = decode(bytes);
        EXPECT_EQ(image.pixels.size(), image.height * image.width * image.channels);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
      }
    };
    for (std::size_t length = 0; length < file.size(); ++length) attempt(file.substr(0, length));
    for (std::size_t at = 0; at < file.size(); ++at) {
      std::string changed = file;
      for (const char value : {'\xff', '\0', '\x7f'}) {
        changed[at] = value;
        attempt(changed);
      }
    }
  }
}

std::vector<float> resampled(const std::vector<std::uint8_t>& in, std::size_t height,
                             std::size_t width, ImageBox box, std::size_t to_height,
                             std::size_t to_width) {
  std::vector<float> out(to_height * to_width);
  resample(Pixels<std::uint8_t>{in.data(), height, width, 1, false}, box,
           {out.data(), to_height, to_width, to_width, out.size()});
  return out;
}

TEST(Resample, WeighsWithATriangle) {
  // By hand: two to one takes weights 1/8, 3/8, 3/8, 1/8 inside, which at a border become 3/7, …
  EXPECT_EQ(resampled({0, 8, 16, 24}, 1, 4, {0, 0, 4, 1}, 1, 4),
            (std::vector<float>{0, 8, 16, 24}));
  const auto half = resampled({0, 70, 140, 210}, 1, 4, {0, 0, 4, 1}, 1, 2);
  EXPECT_NEAR(half[0], (3 * 0 + 3 * 70 + 1 * 140) / 7.0, 1e-4);
  EXPECT_NEAR(half[1], (1 * 70 + 3 * 140 + 3 * 210) / 7.0, 1e-4);
  // One to two: 1/4 and 3/4 of the neighbours.
  const auto twice = resampled({0, 100}, 1, 2, {0, 0, 2, 1}, 1, 4);
  EXPECT_NEAR(twice[1], 25, 1e-4);
  EXPECT_NEAR(twice[2], 75, 1e-4);
  // A whole part is copied.
  EXPECT_EQ(resampled({1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, 3, {1, 1, 2, 2}, 2, 2),
            (std::vector<float>{5, 6, 8, 9}));
}

std::vector<float> augmented(const std::string& list, Augmentation::Occasion occasion,
                             std::vector<float> image, std::size_t channels, std::size_t height,
                             std::size_t width, float white = 1) {
  Augmentation::parse(list).apply(occasion, {image.data(), channels, height, width}, white);
  return image;
}

TEST(Augment, FlipsHalfOfTheSamples) {
  const std::vector<float> image = {1, 2, 3, 4, 5, 6};
  int flipped = 0;
  for (std::uint64_t sample = 0; sample < 1000; ++sample) {
    const auto out = augmented("flip", {1, 7, sample}, image, 1, 2, 3);
    const bool mirrored = out == std::vector<float>{3, 2, 1, 6, 5, 4};
    ASSERT_TRUE(mirrored || out == image);
    flipped += mirrored;
    // The same again; another step, another choice in half of the cases.
    EXPECT_EQ(out, augmented("flip", {1, 7, sample}, image, 1, 2, 3));
  }
  EXPECT_NEAR(flipped, 500, 60);
}

TEST(Augment, CropMovesByAtMostThePadding) {
  std::vector<float> image(25);
  for (std::size_t i = 0; i < 25; ++i) image[i] = static_cast<float>(i + 1);
  std::vector<int> seen(25);
  for (std::uint64_t step = 0; step < 500; ++step) {
    const auto out = augmented("crop:2", {3, step, 5}, image, 1, 5, 5);
    // The middle is still there, at one of 25 places, and what came in is zero.
    const auto at = static_cast<std::size_t>(std::ranges::find(out, 13.0f) - out.begin());
    ASSERT_LT(at, 25u);
    ++seen[at];
    const auto down = static_cast<std::int64_t>(at / 5) - 2,
               right = static_cast<std::int64_t>(at % 5) - 2;
    for (std::int64_t y = 0; y < 5; ++y) {
      for (std::int64_t x = 0; x < 5; ++x) {
        const bool inside = y - down >= 0 && y - down < 5 && x - right >= 0 && x - right < 5;
        EXPECT_EQ(out[static_cast<std::size_t>(y * 5 + x)],
                  inside ? static_cast<float>((y - down) * 5 + x - right + 1) : 0);
      }
    }
  }
  for (const int count : seen) EXPECT_GT(count, 5);  // of 20 expected
}

TEST(Augment, OtherOperationsKeepToTheirRanges) {
  const std::vector<float> grey(3 * 64, 0.5f);
  for (std::uint64_t sample = 0; sample < 200; ++sample) {
    const auto bright = augmented("brightness:0.2", {1, 0, sample}, grey, 3, 8, 8);
    EXPECT_GE(bright[0], 0.4f - 1e-6f);
    EXPECT_LE(bright[0], 0.6f + 1e-6f);
    EXPECT_EQ(bright[0], bright[191]);
    const auto cut = augmented("cutout:3", {1, 0, sample}, grey, 3, 8, 8);
    const auto zeros = std::ranges::count(cut, 0.0f);
    EXPECT_TRUE(zeros % 3 == 0 && zeros >= 3 * 2 * 2 - 12 && zeros <= 3 * 9) << zeros;
    const auto same = augmented("contrast:0.5,saturation:0.5", {1, 0, sample}, grey, 3, 8, 8);
    EXPECT_NEAR(same[7], 0.5, 1e-5);  // neither changes an even grey
  }
  double sum = 0, squares = 0;
  for (const float value :
       augmented("noise:0.1", {1, 2, 3}, std::vector<float>(40000, 0.5f), 1, 200, 200)) {
    sum += value - 0.5;
    squares += (value - 0.5) * (value - 0.5);
  }
  EXPECT_NEAR(sum / 40000, 0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / 40000), 0.1, 0.002);
  const Augmentation crop = Augmentation::parse("resized-crop:0.25");
  for (std::uint64_t sample = 0; sample < 200; ++sample) {
    const ImageBox box = crop.choose_box({1, 0, sample}, {0, 0, 100, 80}, 80, 100);
    EXPECT_GE(box.left, 0);
    EXPECT_GE(box.top, 0);
    EXPECT_LE(box.left + box.width, 100);
    EXPECT_LE(box.top + box.height, 80);
    EXPECT_GE(box.width * box.height, 0.24 * 8000 - 200);
  }
}

// As torchvision's, which clip after each of them. By hand for factors 1.5 and 0.6: 1.5 becomes 1,
// whose distance from the mean 0.5 becomes 0.3.
TEST(Augment, ColorsAreClippedAfterEachOperation) {
  const std::vector<float> image = {0, 1};
  const auto factors_of = [&](std::uint64_t sample) {
    const Augmentation::Occasion occasion{1, 0, sample};
    const auto bright = augmented("brightness:0.9", occasion, image, 1, 1, 2, 0);
    const auto contrast = augmented("brightness:0,contrast:0.9", occasion, image, 1, 1, 2, 0);
    return std::pair(bright[1], contrast[1] - contrast[0]);
  };
  int clipped = 0;
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    const auto [bright, contrast] = factors_of(sample);
    const auto out = augmented("brightness:0.9,contrast:0.9", {1, 0, sample}, image, 1, 1, 2, 1);
    const float white = std::min(bright, 1.0f), mean = white / 2;
    EXPECT_NEAR(out[0], std::clamp(mean - contrast * mean, 0.0f, 1.0f), 1e-5);
    EXPECT_NEAR(out[1], std::clamp(mean + contrast * mean, 0.0f, 1.0f), 1e-5);
    clipped += bright > 1.4 && contrast < 0.7;
  }
  EXPECT_GT(clipped, 3);
}

TEST(Augment, OpacityIsNoColor) {
  const std::vector<float> image = {0.1f, 0.2f, 0.3f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f};
  const auto out =
      augmented("brightness:0.9,contrast:0.9,saturation:0.9", {1, 2, 3}, image, 4, 1, 2);
  EXPECT_NE(out[0], image[0]);
  EXPECT_EQ(out[6], image[6]);
  EXPECT_EQ(out[7], image[7]);
}

TEST(Augment, AnotherOperationInTheListChangesNoOther) {
  const std::vector<float> image = {1, 2, 3, 4};
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    EXPECT_EQ(augmented("flip", {1, 0, sample}, image, 1, 1, 4),
              augmented("flip,brightness:0", {1, 0, sample}, image, 1, 1, 4, 0));
  }
}

TEST(Augment, DependsOnSeedStepAndSampleAlone) {
  std::vector<float> image(3 * 16 * 16);
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i) / 1000;
  for (const char* list :
       {"crop:6", "cutout:5", "brightness:0.9", "contrast:0.9", "saturation:0.9", "noise:0.1"}) {
    const auto changed = [&](std::uint64_t seed, std::uint64_t step, std::uint64_t sample) {
      return augmented(list, {seed, step, sample}, image, 3, 16, 16);
    };
    const auto once = changed(1, 2, 3);
    EXPECT_EQ(changed(1, 2, 3), once) << list;
    // A few others, since two of them may by chance be moved or cut alike.
    std::set<std::vector<float>> seeds, steps, samples;
    for (std::uint64_t other = 0; other < 20; ++other) {
      seeds.insert(changed(other, 2, 3));
      steps.insert(changed(1, other, 3));
      samples.insert(changed(1, 2, other));
    }
    for (const auto* found : {&seeds, &steps, &samples}) EXPECT_GT(found->size(), 10u) << list;
    EXPECT_NE(changed(std::uint64_t{1} << 40 | 1, 2, 3), once) << list;
  }
  const Augmentation crop = Augmentation::parse("resized-crop");
  std::set<double> widths;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    widths.insert(crop.choose_box({seed, 2, 3}, {0, 0, 100, 80}, 80, 100).width);
  EXPECT_GT(widths.size(), 5u);
}

TEST(Augment, WrongListsSayWhatThereIs) {
  for (const char* list :
       {"flop", "crop", "crop:0", "crop:1.5", "flip:2", "cutout:x", "noise:-1", "flip,,crop:4"}) {
    const std::string message = data_error([&] { Augmentation::parse(list); }, ErrorKind::kUsage);
    expect_contains(message, "`augment`");
  }
  EXPECT_TRUE(Augmentation::parse("none").empty());
  EXPECT_TRUE(Augmentation::parse("").empty());
}

}  // namespace
}  // namespace pipetrain
