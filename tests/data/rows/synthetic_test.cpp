#include "data/rows/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/data_files.h"

namespace pipetrain {
namespace {

ModelInput floats_of(Shape shape) { return {"x", DType::kFloat32, std::move(shape), -1}; }

LabelSpec classes(std::int64_t count, Shape shape = {}) {
  LabelSpec out;
  out.classes = count;
  out.sample_shape = std::move(shape);
  return out;
}

// Share of samples 1000 … 1999 whose label the nearest class mean of samples 0 … 999 guesses.
double nearest_mean_accuracy(const Dataset& data, int count) {
  const std::size_t columns = data.columns().size();
  const auto x = values(data, 0), y = values(data, columns - 1);
  const std::size_t width = x.size() / data.size(), half = data.size() / 2;
  std::vector<std::vector<double>> mean(count, std::vector<double>(width));
  std::vector<double> members(count);
  for (std::size_t i = 0; i < half; ++i) {
    const int label = static_cast<int>(y[i]);
    members[label] += 1;
    for (std::size_t k = 0; k < width; ++k) mean[label][k] += x[i * width + k];
  }
  std::size_t right = 0;
  for (std::size_t i = half; i < data.size(); ++i) {
    int best = 0;
    double best_distance = INFINITY;
    for (int label = 0; label < count; ++label) {
      double distance = 0;
      for (std::size_t k = 0; k < width; ++k) {
        distance += std::pow(x[i * width + k] - mean[label][k] / members[label], 2);
      }
      if (distance < best_distance) best = label, best_distance = distance;
    }
    right += best == static_cast<int>(y[i]);
  }
  return static_cast<double>(right) / static_cast<double>(data.size() - half);
}

TEST(Synthetic, IsAPureFunctionOfSeedAndIndex) {
  const DataSpec spec{{floats_of({3, 8, 8})}, classes(10)};
  const auto a = make_synthetic(spec, 100, 1), b = make_synthetic(spec, 50, 1);
  EXPECT_EQ(values(*a, 0, {7, 3}), values(*b, 0, {7, 3}));
  EXPECT_EQ(values(*a, 1, {7, 3}), values(*b, 1, {7, 3}));
  EXPECT_NE(values(*a, 0, {7}), values(*a, 0, {3}));
  EXPECT_NE(values(*a, 0, {7}), values(*make_synthetic(spec, 100, 2), 0, {7}));
}

TEST(Synthetic, ClassesCanBeLearned) {
  EXPECT_GT(nearest_mean_accuracy(*make_synthetic({{floats_of({64})}, classes(10)}, 2000, 1), 10),
            0.8);
  EXPECT_GT(
      nearest_mean_accuracy(*make_synthetic({{floats_of({3, 8, 8})}, classes(10)}, 2000, 1), 10),
      0.8);
}

TEST(Synthetic, EveryClassOccurs) {
  const auto data = make_synthetic({{floats_of({2})}, classes(10)}, 2000, 1);
  std::map<double, int> seen;
  for (const double label : values(*data, 1)) ++seen[label];
  ASSERT_EQ(seen.size(), 10u);
  for (const auto& [label, count] : seen) EXPECT_GT(count, 120) << label;
}

TEST(Synthetic, TokensFollowTheirSuccessorThreeTimesInFour) {
  LabelSpec label = classes(50, {64});
  label.shifted_input = true;
  const auto data = make_synthetic({{{"ids", DType::kInt64, {64}, 50}}, label}, 100, 1);
  const auto x = values(*data, 0), y = values(*data, 1);
  std::map<double, std::map<double, int>> follows;
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(x[i] >= 0 && x[i] < 50);
    if (i % 64 != 63) {
      ASSERT_EQ(y[i], x[i + 1]);
    }
    ++follows[x[i]][y[i]];
  }
  int most = 0;
  for (const auto& [token, next] : follows) {
    int best = 0;
    for (const auto& [id, count] : next) best = std::max(best, count);
    most += best;
  }
  EXPECT_NEAR(most / static_cast<double>(x.size()), 0.755, 0.02);
}

TEST(Synthetic, NextTokensAreThoseOfTheTokens) {
  LabelSpec label = classes(50, {6});
  label.shifted_input = true;
  const auto data = make_synthetic(
      {{floats_of({4, 3}), {"decoder_input_ids", DType::kInt64, {6}, 50}}, label}, 10, 1);
  const auto ids = values(*data, 1), next = values(*data, 2);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i % 6 != 5) {
      EXPECT_EQ(next[i], ids[i + 1]) << i;
    }
  }
}

TEST(Synthetic, RegressionIsLinear) {
  LabelSpec label;
  label.dtype = DType::kFloat32;
  label.sample_shape = {2};
  const auto data = make_synthetic({{floats_of({3})}, label}, 8, 1);
  // Four samples in three dimensions are linearly dependent: with c from x, y must agree.
  const auto x = values(*data, 0), y = values(*data, 1);
  const auto det = [&](int a, int b, int c) {
    const double* p = x.data();
    return p[3 * a] * (p[3 * b + 1] * p[3 * c + 2] - p[3 * b + 2] * p[3 * c + 1]) -
           p[3 * a + 1] * (p[3 * b] * p[3 * c + 2] - p[3 * b + 2] * p[3 * c]) +
           p[3 * a + 2] * (p[3 * b] * p[3 * c + 1] - p[3 * b + 1] * p[3 * c]);
  };
  const double whole = det(0, 1, 2);
  ASSERT_GT(std::fabs(whole), 1e-3);
  const double c[3] = {det(3, 1, 2) / whole, det(0, 3, 2) / whole, det(0, 1, 3) / whole};
  for (int j = 0; j < 2; ++j) {
    EXPECT_NEAR(c[0] * y[j] + c[1] * y[2 + j] + c[2] * y[4 + j], y[6 + j], 1e-4);
    EXPECT_GT(std::fabs(y[j]), 0);
  }
}

TEST(Synthetic, PerPositionClassesDependOnThePosition) {
  const auto data = make_synthetic({{floats_of({1, 4, 4})}, classes(2, {4, 4})}, 20, 1);
  const auto x = values(*data, 0), y = values(*data, 1);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], x[i] >= 0 ? 1 : 0) << x[i];
}

TEST(Synthetic, MasksProbabilitiesAndIds) {
  LabelSpec label;
  label.dtype = DType::kFloat32;
  label.sample_shape = {1};
  label.probability = true;
  const auto data = make_synthetic({{{"attention_mask", DType::kInt64, {4}, -1},
                                     {"ids", DType::kInt32, {4}, 7},
                                     {"x", DType::kFloat16, {2}, -1}},
                                    label},
                                   200, 1);
  EXPECT_EQ(values(*data, 0, {0}), (std::vector<double>{1, 1, 1, 1}));
  for (const double id : values(*data, 1)) EXPECT_TRUE(id >= 0 && id < 7);
  double ones = 0;
  for (const double value : values(*data, 3)) {
    EXPECT_TRUE(value == 0 || value == 1);
    ones += value;
  }
  EXPECT_NEAR(ones / 200, 0.5, 0.15);
  EXPECT_EQ(data_error([] { make_synthetic({}, 0, 1); }, ErrorKind::kUsage).empty(), false);
}

TEST(Synthetic, AnAutoencoderGetsItsInput) {
  LabelSpec label;
  label.dtype = DType::kFloat32;
  label.sample_shape = {5};
  const auto data = make_synthetic({{floats_of({5})}, label}, 3, 1);
  EXPECT_EQ(values(*data, 0), values(*data, 1));
}

}  // namespace
}  // namespace pipetrain
