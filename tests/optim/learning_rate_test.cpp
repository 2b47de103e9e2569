#include "optim/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr double kPi = 3.14159265358979323846;

TEST(LearningRate, CosineIsPyTorchs) {
  const LearningRateSettings settings{.peak = 0.2, .minimum = 0.02};
  const std::vector<double> golden = {0.2,
                                      0.19108719811121772,
                                      0.16611408216728601,
                                      0.1300268840560683,
                                      0.08997311594393172,
                                      0.053885917832713986,
                                      0.028912801888782286};
  for (std::size_t i = 0; i < golden.size(); ++i) {
    EXPECT_NEAR(learning_rate(settings, static_cast<std::int64_t>(i) + 1, 7), golden[i], 1e-15);
  }
  EXPECT_NEAR(learning_rate(settings, 8, 7), 0.02, 1e-15);
  EXPECT_NEAR(learning_rate(settings, 1000, 7), 0.02, 1e-15);
}

TEST(LearningRate, StepIsPyTorchs) {
  const LearningRateSettings settings{
      .kind = LearningRateKind::kStep, .peak = 0.2, .gamma = 0.5, .every_steps = 3};
  const std::vector<double> golden = {0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05};
  for (std::size_t i = 0; i < golden.size(); ++i) {
    EXPECT_DOUBLE_EQ(learning_rate(settings, static_cast<std::int64_t>(i) + 1, 8), golden[i]);
  }
  LearningRateSettings floored = settings;
  floored.minimum = 0.07;
  EXPECT_DOUBLE_EQ(learning_rate(floored, 7, 8), 0.07);
}

TEST(LearningRate, LinearFallsToTheMinimum) {
  const LearningRateSettings settings{.kind = LearningRateKind::kLinear, .peak = 1, .minimum = 0.5};
  for (int step = 1; step <= 10; ++step) {
    EXPECT_NEAR(learning_rate(settings, step, 10), 1 - 0.5 * (step - 1) / 10.0, 1e-15);
  }
  EXPECT_EQ(learning_rate(settings, 11, 10), 0.5);
}

TEST(LearningRate, WarmupRisesInEqualStepsToThePeak) {
  for (const LearningRateKind kind :
       {LearningRateKind::kConstant, LearningRateKind::kCosine, LearningRateKind::kLinear}) {
    const LearningRateSettings settings{.kind = kind, .peak = 0.6, .warmup_steps = 5};
    for (int step = 1; step <= 6; ++step) {
      EXPECT_NEAR(learning_rate(settings, step, 20), 0.1 * step, 1e-15) << name_of(kind);
    }
  }
  // After the warm-up the cosine spans what is left.
  const LearningRateSettings cosine{.peak = 0.6, .warmup_steps = 5};
  EXPECT_NEAR(learning_rate(cosine, 11, 20), 0.3 * (1 + std::cos(kPi * 5 / 15)), 1e-15);
}

TEST(LearningRate, ConstantStays) {
  const LearningRateSettings settings{.kind = LearningRateKind::kConstant, .peak = 0.3};
  for (const std::int64_t step : {1, 2, 50, 1000000}) {
    EXPECT_EQ(learning_rate(settings, step, 0), 0.3);
  }
}

TEST(LearningRate, RefusesSettingsWithoutMeaning) {
  EXPECT_NO_THROW(validate({}, 100));
  EXPECT_THROW(validate({}, 0), Error);
  EXPECT_NO_THROW(validate({.kind = LearningRateKind::kConstant}, 0));
  EXPECT_THROW(validate({.warmup_steps = 100}, 100), Error);
  EXPECT_THROW(validate({.warmup_steps = -1}, 100), Error);
  EXPECT_THROW(validate({.peak = -1}, 100), Error);
  EXPECT_THROW(validate({.peak = 1e-3, .minimum = 1e-2}, 100), Error);
  EXPECT_THROW(validate({.kind = LearningRateKind::kStep}, 100), Error);
  EXPECT_THROW(learning_rate_named("triangle"), Error);
  EXPECT_EQ(name_of(learning_rate_named("cosine")), "cosine");
}

}  // namespace
}  // namespace pipetrain
