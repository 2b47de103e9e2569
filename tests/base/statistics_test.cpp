#include "base/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/clock.h"

namespace pipetrain {
namespace {

TEST(Statistics, MedianIsTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

// numpy.percentile([15, 20, 35, 40, 50], q)
TEST(Statistics, PercentilesAreNumpys) {
  const std::vector<double> values = {50, 15, 35, 40, 20};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 15);
  EXPECT_DOUBLE_EQ(percentile(values, 5), 16);
  EXPECT_DOUBLE_EQ(percentile(values, 40), 29);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 46);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 50);
}

TEST(Clock, CpuTimeCountsWorkAndNotWaiting) {
  const double cpu = thread_cpu_seconds(), wall = steady_seconds();
  volatile double sink = 0;
  while (steady_seconds() < wall + 0.02) sink = sink + 1;
  const double used = thread_cpu_seconds() - cpu;
  EXPECT_GT(used, 0);
  EXPECT_LT(used, steady_seconds() - wall + 0.01);
}

TEST(ThinnedValues, AreAllOfAShortRunAndSomeOfALongOne) {
  ThinnedValues few;
  for (const double value : {90.0, 1.0, 3.0, 2.0}) few.add(value);
  EXPECT_EQ(few.first(), 90);
  EXPECT_EQ(few.warm_median(), 2);  // without the first
  ThinnedValues ten;
  for (const double value : {9.0, 9.0, 9.0, 9.0, 1.0, 5.0, 2.0, 4.0, 3.0, 6.0}) ten.add(value);
  EXPECT_EQ(ten.warm_median(), 3.5);  // without the first four
  ThinnedValues many;
  for (int i = 0; i < 1'000'000; ++i) many.add(i % 1000);
  EXPECT_EQ(many.first(), 0);
  EXPECT_NEAR(many.warm_median(), 500, 20);
}

TEST(Clock, WaitsUntilATimeAndSleepsMeanwhile) {
  const double cpu = thread_cpu_seconds(), end = steady_seconds() + 0.03;
  wait_until(end);
  EXPECT_GE(steady_seconds(), end);
  EXPECT_LT(thread_cpu_seconds() - cpu, 0.015);
  const double before = steady_seconds();
  wait_until(before - 1);
  EXPECT_LT(steady_seconds() - before, 0.5);
}

}  // namespace
}  // namespace pipetrain
