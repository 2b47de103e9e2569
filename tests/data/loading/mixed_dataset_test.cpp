#include "data/loading/mixed_dataset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/data_files.h"

namespace pipetrain {
namespace {

constexpr std::size_t kSide = 8, kSamples = 12;

/// Sample i is an image of ones at channel i and else zeros, so that a mixture shows its parts; its
/// class is i modulo 4.
class Pure : public Dataset {
 public:
  explicit Pure(DType input = DType::kFloat32, Shape label = {})
      : columns_{{"x", input, {3, kSide, kSide}}, {"labels", DType::kInt64, std::move(label)}} {}
  std::size_t size() const override { return kSamples; }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t> indices, std::size_t column, Tensor out) const override {
    constexpr std::size_t kCount = 3 * kSide * kSide;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (column == 1) {
        out.as<std::int64_t>()[i] = static_cast<std::int64_t>(indices[i] % 4);
      } else {
        std::fill_n(out.as<float>() + i * kCount, kCount, static_cast<float>(1 << indices[i]));
      }
    }
  }

 private:
  std::vector<Column> columns_;
};

struct MixedBatch {
  std::vector<float> x, y;
};

MixedBatch batch_of(const Mixing& mixing, std::uint64_t step, const MixedLabels& labels = {4, 0}) {
  const MixedDataset data(std::make_shared<Pure>(), mixing, 7, labels);
  std::vector<std::size_t> all(kSamples);
  std::iota(all.begin(), all.end(), std::size_t{0});
  HostTensor x(data.columns()[0].batch_type(kSamples)), y(data.columns()[1].batch_type(kSamples));
  data.gather_augmented(step, all, 0, x.view());
  data.gather_augmented(step, all, 1, y.view());
  return {{x.span<float>().begin(), x.span<float>().end()},
          {y.span<float>().begin(), y.span<float>().end()}};
}

// The partner and the share that turn sample i into the mixture, from the labels alone.
TEST(MixedDataset, MixupAveragesInputsAndLabelsAlike) {
  for (std::uint64_t step = 0; step < 50; ++step) {
    const MixedBatch batch = batch_of({.mixup = 0.4}, step);
    double labels_of_all[4] = {};
    for (std::size_t i = 0; i < kSamples; ++i) {
      const float* y = &batch.y[4 * i];
      EXPECT_NEAR(std::accumulate(y, y + 4, 0.0), 1, 1e-6);
      for (int c = 0; c < 4; ++c) labels_of_all[c] += y[c];
      // Exactly one partner explains both: x = s 2^i + (1 - s) 2^j, y = s class i + (1 - s) class
      // j.
      int explained = 0;
      for (std::size_t j = 0; j < kSamples; ++j) {
        const double own = std::ldexp(1, static_cast<int>(i)),
                     other = std::ldexp(1, static_cast<int>(j));
        const double share = i == j ? 1 : (batch.x[i * 3 * kSide * kSide] - other) / (own - other);
        if (share < -1e-6 || share > 1 + 1e-6) continue;
        const double expected = i % 4 == j % 4 ? 1 : share;
        explained += std::abs(y[i % 4] - expected) < 1e-4 &&
                     (i % 4 == j % 4 || std::abs(y[j % 4] - (1 - share)) < 1e-4);
      }
      EXPECT_GE(explained, 1) << "sample " << i << " of step " << step;
    }
    // Every sample is somebody's partner once.
    for (const double sum : labels_of_all) EXPECT_NEAR(sum, 3, 1e-5);
  }
}

TEST(MixedDataset, SharesAreThoseOfABetaDistribution) {
  for (const double a : {0.2, 1.0, 4.0}) {
    double sum = 0, squares = 0;
    constexpr int kSteps = 4000;
    int known = 0;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const MixedBatch batch = batch_of({.mixup = a}, step);
      // Sample 0 is 1, any partner 2^j: the largest of the batch tells nothing, a label of two
      // does.
      const float share = batch.y[0];
      const float* y = &batch.y[0];
      if (y[1] + y[2] + y[3] == 0 && batch.x[0] != 1) continue;  // a partner of the same class
      if (batch.x[0] == 1 && share == 1) continue;               // itself, or all of it
      sum += share, squares += static_cast<double>(share) * share, ++known;
    }
    const double mean = sum / known, variance = squares / known - mean * mean;
    EXPECT_NEAR(mean, 0.5, 0.03) << a;
    EXPECT_NEAR(variance, 1 / (4 * (2 * a + 1)), 0.015) << a;
  }
}

TEST(MixedDataset, CutmixPastesARectangleOfTheLabelsShare) {
  int pasted = 0;
  for (std::uint64_t step = 0; step < 50; ++step) {
    const MixedBatch batch = batch_of({.cutmix = 1}, step);
    for (std::size_t i = 0; i < kSamples; ++i) {
      const auto own = std::ldexp(1.0F, static_cast<int>(i));
      std::size_t top = kSide, bottom = 0, left = kSide, right = 0, count = 0;
      float other = own;
      for (std::size_t p = 0; p < kSide * kSide; ++p) {
        const float value = batch.x[i * 3 * kSide * kSide + p];
        EXPECT_EQ(value, batch.x[(i * 3 + 2) * kSide * kSide + p]);  // of all channels
        if (value == own) continue;
        EXPECT_TRUE(other == own || value == other);
        other = value;
        top = std::min(top, p / kSide), bottom = std::max(bottom, p / kSide + 1);
        left = std::min(left, p % kSide), right = std::max(right, p % kSide + 1);
        ++count;
      }
      if (count == 0) continue;
      ++pasted;
      EXPECT_EQ(count, (bottom - top) * (right - left));
      const auto j = static_cast<std::size_t>(std::ilogb(other));
      const double share = static_cast<double>(count) / (kSide * kSide);
      if (i % 4 != j % 4) EXPECT_NEAR(batch.y[4 * i + j % 4], share, 1e-6);
    }
  }
  EXPECT_GT(pasted, 300);
}

TEST(MixedDataset, LabelsAreSmoothedAndSamplesAloneAreNotMixed) {
  const MixedDataset data(std::make_shared<Pure>(), {.mixup = 1}, 7, {4, 0.2});
  HostTensor y(data.columns()[1].batch_type(1));
  const std::size_t third = 2;
  data.gather({&third, 1}, 1, y.view());
  for (std::size_t c = 0; c < 4; ++c) EXPECT_NEAR(y.span<float>()[c], c == 2 ? 0.85 : 0.05, 1e-7);
}

TEST(MixedDataset, StepsDifferAndRepeat) {
  EXPECT_EQ(batch_of({.mixup = 1}, 3).x, batch_of({.mixup = 1}, 3).x);
  EXPECT_NE(batch_of({.mixup = 1}, 3).x, batch_of({.mixup = 1}, 4).x);
  EXPECT_NE(batch_of({.mixup = 1}, 3).x, batch_of({.mixup = 1, .cutmix = 1}, 3).x);
}

TEST(MixedDataset, WhatCannotBeMixedIsRefused) {
  const auto mix = [](Pure data, const Mixing& mixing, const MixedLabels& labels = {4, 0}) {
    return data_error(
        [&] {
          const MixedDataset mixed(std::make_shared<Pure>(std::move(data)), mixing, 1, labels);
        },
        ErrorKind::kUsage);
  };
  expect_contains(mix(Pure(DType::kInt64), {.mixup = 1}), "\"x\" is int64");
  expect_contains(mix(Pure(DType::kFloat32, {9, 9}), {.mixup = 1}), "one label per sample");
  // Targets that are images: a rectangle would be pasted into the input alone.
  const Pure images(DType::kFloat32, {1, kSide, kSide});
  expect_contains(mix(images, {.cutmix = 1}, {}), "cutmix");
  EXPECT_NO_THROW(MixedDataset(std::make_shared<Pure>(images), {.mixup = 1}, 1, {}));
  EXPECT_NO_THROW(MixedDataset(std::make_shared<Pure>(DType::kFloat32, Shape{3}), {.cutmix = 1}, 1,
                               MixedLabels{}));
}

TEST(MixedDataset, AnIgnoredLabelIsRefused) {
  expect_contains(data_error([] { batch_of({.mixup = 1}, 0, {.classes = 4, .ignored = 3}); }),
                  "a label is 3, which is ignored");
}

}  // namespace
}  // namespace pipetrain
