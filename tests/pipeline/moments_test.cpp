#include "pipeline/moments.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

/// Four values 1, 2, 4, 9 in two parts against mean 4 and unbiased variance (9 + 4 + 0 + 25) / 3.
TEST(Moments, MergePartsExactlyAndUseTheUnbiasedVariance) {
  Moments moments;
  moments.reset(1);
  const float mean_a = 1.5F, variance_a = 0.25F, mean_b = 6.5F, variance_b = 6.25F;
  moments.merge({&mean_a, 1}, {&variance_a, 1}, 2);
  moments.merge({&mean_b, 1}, {&variance_b, 1}, 2);
  float mean = 10, variance = 20;
  moments.apply(0.9, {&mean, 1}, {&variance, 1});
  EXPECT_FLOAT_EQ(mean, 0.9F * 10 + 0.1F * 4);
  EXPECT_FLOAT_EQ(variance, 0.9F * 20 + 0.1F * 38 / 3);
  moments.apply(0.9, {&mean, 1}, {&variance, 1});
  EXPECT_FLOAT_EQ(mean, 9.4F);  // nothing was merged since
}

}  // namespace
}  // namespace pipetrain
