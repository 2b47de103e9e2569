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

TEST(Moments, OfWeightsCountOnceHoweverManyMicroBatchesBringThem) {
  Moments moments, replica;
  const float mean = 1.5F, variance = 0.75F;
  for (Moments* each : {&moments, &replica}) {
    each->reset(1, /*of_weights=*/true);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch)
      each->merge({&mean, 1}, {&variance, 1}, 4);
  }
  moments.merge(replica);
  float running_mean = 10, running_variance = 20;
  moments.apply(0.9, {&running_mean, 1}, {&running_variance, 1});
  EXPECT_FLOAT_EQ(running_mean, 0.9F * 10 + 0.1F * 1.5F);
  EXPECT_FLOAT_EQ(running_variance, 0.9F * 20 + 0.1F * 0.75F * 4 / 3);
}

}  // namespace
}  // namespace pipetrain
