#include "cli/commands/lr_find.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pipetrain {
namespace {

/// 100 rates from 1e-6 to 10, with the loss that `of` gives for the logarithm of a rate.
std::vector<RangePoint> curve(double (*of)(double)) {
  std::vector<RangePoint> points;
  for (int i = 0; i < 100; ++i) {
    const double exponent = -6 + 7.0 * i / 99;
    points.push_back({std::pow(10, exponent), of(exponent)});
  }
  return points;
}

TEST(LrFind, TheRateIsWhereTheLossFallsFastest) {
  // Falls from 2 to 1 around 1e-3 and rises from 0.1 on.
  const double rate = suggested_rate(curve([](double x) {
    return 2 - 1 / (1 + std::exp(-4 * (x + 3))) + (x > -1 ? 3 * (x + 1) : 0);
  }));
  EXPECT_GT(rate, 1e-4);
  EXPECT_LT(rate, 1e-2);
}

TEST(LrFind, AFallBehindTheMinimumDoesNotCount) {
  // As before, but the loss falls from a peak at 1.
  const double rate = suggested_rate(curve([](double x) {
    const double risen = x > -1 ? 6 * (x + 1) : 0;
    return 2 - 1 / (1 + std::exp(-4 * (x + 3))) + (x > 0 ? 6 - 4 * x : risen);
  }));
  EXPECT_GT(rate, 1e-4);
  EXPECT_LT(rate, 1e-2);
}

TEST(LrFind, ALossThatNeverFallsHasNoRate) {
  EXPECT_EQ(suggested_rate(curve([](double x) { return 2 + x / 10; })), 0);
}

}  // namespace
}  // namespace pipetrain
