#include "optim/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// Compares the rates of steps 1, 2, … (those of PyTorch are from make_goldens.py).
void expect_rates(const LearningRateSettings& settings, std::int64_t total,
                  const std::vector<double>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(learning_rate(settings, static_cast<std::int64_t>(i) + 1, total), expected[i],
                1e-15)
        << name_of(settings.kind) << ", step " << i + 1;
  }
}

void expect_refused(const LearningRateSettings& settings, const std::string& flag) {
  try {
    validate(settings, 100);
    ADD_FAILURE() << "taken, though " << flag << " has no meaning";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find(flag), std::string::npos) << error.message();
  }
}

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

TEST(LearningRate, MultistepIsPyTorchs) {
  const std::vector<double> golden = {0.2, 0.2, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025};
  LearningRateSettings settings{.kind = LearningRateKind::kMultistep,
                                .peak = 0.2,
                                .gamma = 0.5,
                                .milestones = {{2}, {3}, {6}}};
  expect_rates(settings, 8, golden);
  // The same milestones as fractions of the run.
  settings.milestones = {{0.25, true}, {3.0 / 8, true}, {6}};
  expect_rates(settings, 8, golden);
  settings.minimum = 0.03;
  EXPECT_DOUBLE_EQ(learning_rate(settings, 8, 8), 0.03);
}

TEST(LearningRate, ExponentialIsPyTorchs) {
  LearningRateSettings settings{
      .kind = LearningRateKind::kExponential, .peak = 0.2, .gamma = 0.7, .every_steps = 1};
  expect_rates(settings, 0, {0.2, 0.14, 0.098, 0.0686, 0.04802, 0.033614});
  settings.every_steps = 5;
  EXPECT_NEAR(learning_rate(settings, 6, 0), 0.14, 1e-15);
  EXPECT_NEAR(learning_rate(settings, 4, 0), 0.2 * std::pow(0.7, 0.6), 1e-15);
  settings.warmup_steps = 3;
  EXPECT_DOUBLE_EQ(learning_rate(settings, 4, 0), 0.2);
}

TEST(LearningRate, PolynomialIsPyTorchs) {
  LearningRateSettings settings{.kind = LearningRateKind::kPolynomial, .peak = 0.2, .power = 2};
  expect_rates(settings, 6,
               {0.2, 0.13888888888888892, 0.08888888888888893, 0.05000000000000002,
                0.022222222222222233, 0.005555555555555555, 0, 0});
  settings.minimum = 0.04;
  EXPECT_NEAR(learning_rate(settings, 4, 6), 0.04 + 0.16 / 4, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 100, 6), 0.04);
}

TEST(LearningRate, OneCycleIsPyTorchs) {
  LearningRateSettings settings{.kind = LearningRateKind::kOneCycle, .peak = 0.2};
  expect_rates(settings, 10,
               {0.008, 0.104, 0.2, 0.19009692640269477, 0.1623491307899526, 0.12225240438725786,
                0.07774839561274215, 0.0376516692100474, 0.009903873597305258, 8e-07, 8e-07});
  settings.warmup_steps = 4;
  expect_rates(settings, 10,
               {0.008, 0.056, 0.152, 0.2, 0.18660259396828238, 0.1500002, 0.1000004, 0.0500006,
                0.013398206031717645, 8e-07, 8e-07});
  settings.minimum = 0.01;
  EXPECT_DOUBLE_EQ(learning_rate(settings, 10, 10), 0.01);
  // Runs too short for a warm-up.
  for (int total = 1; total <= 4; ++total) {
    for (int step = 1; step <= total + 1; ++step) {
      const double rate = learning_rate({.kind = LearningRateKind::kOneCycle}, step, total);
      EXPECT_TRUE(rate > 0 && rate <= 1e-3) << total << " " << step << " " << rate;
    }
  }
}

TEST(LearningRate, InverseSqrtMeetsTheWarmup) {
  LearningRateSettings settings{.kind = LearningRateKind::kInverseSqrt, .peak = 0.4};
  expect_rates(settings, 0, {0.4, 0.4 / std::sqrt(2.0), 0.4 / std::sqrt(3.0), 0.2});
  settings.warmup_steps = 3;
  expect_rates(settings, 0, {0.1, 0.2, 0.3, 0.4, 0.4 * std::sqrt(0.8)});
  EXPECT_NEAR(learning_rate(settings, 16, 0), 0.2, 1e-15);
  settings.minimum = 0.3;
  EXPECT_DOUBLE_EQ(learning_rate(settings, 1000, 0), 0.3);
}

TEST(LearningRate, WsdFallsAtTheEnd) {
  LearningRateSettings settings{.kind = LearningRateKind::kWsd,
                                .peak = 0.8,
                                .minimum = 0.4,
                                .warmup_steps = 1,
                                .decay_fraction = 0.4};
  expect_rates(settings, 10, {0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4});
  settings.decay_fraction = 0;
  expect_rates(settings, 3, {0.4, 0.8, 0.8});
  // Decay over the whole run: linear.
  settings.decay_fraction = 1;
  settings.warmup_steps = 0;
  for (int step = 1; step <= 8; ++step) {
    EXPECT_NEAR(
        learning_rate(settings, step, 7),
        learning_rate({.kind = LearningRateKind::kLinear, .peak = 0.8, .minimum = 0.4}, step, 7),
        1e-15);
  }
}

TEST(LearningRate, LinearFallsToTheMinimum) {
  const LearningRateSettings settings{.kind = LearningRateKind::kLinear, .peak = 1, .minimum = 0.5};
  for (int step = 1; step <= 10; ++step) {
    EXPECT_NEAR(learning_rate(settings, step, 10), 1 - 0.5 * (step - 1) / 10.0, 1e-15);
  }
  EXPECT_EQ(learning_rate(settings, 11, 10), 0.5);
}

TEST(LearningRate, WarmupRisesInEqualStepsToThePeak) {
  using enum LearningRateKind;
  for (const LearningRateKind kind :
       {kConstant, kCosine, kLinear, kMultistep, kExponential, kPolynomial, kInverseSqrt, kWsd}) {
    const LearningRateSettings settings{
        .kind = kind, .peak = 0.6, .warmup_steps = 5, .milestones = {{12}}};
    for (int step = 1; step <= 6; ++step) {
      EXPECT_NEAR(learning_rate(settings, step, 20), 0.1 * step, 1e-15) << name_of(kind);
    }
  }
  // After the warm-up the cosine spans the remaining steps.
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
  for (const char* name : {"constant", "cosine", "linear", "step", "multistep", "exponential",
                           "polynomial", "inverse-sqrt", "wsd", "onecycle"}) {
    EXPECT_EQ(name_of(learning_rate_named(name)), name);
  }
  EXPECT_EQ(learning_rate_named("inv-sqrt"), LearningRateKind::kInverseSqrt);
}

TEST(LearningRate, NamesTheFlagThatHasNoMeaning) {
  using enum LearningRateKind;
  expect_refused({.kind = kMultistep}, "`lr-milestones`");
  expect_refused({.kind = kMultistep, .milestones = {{0}}}, "`lr-milestones`");
  expect_refused({.kind = kMultistep, .milestones = {{20}, {10}}}, "`lr-milestones`");
  expect_refused({.kind = kMultistep, .milestones = {{60}, {0.5, true}}}, "`lr-milestones`");
  expect_refused({.kind = kMultistep, .gamma = 0, .milestones = {{20}}}, "`lr-gamma`");
  expect_refused({.kind = kExponential}, "`lr-step`");
  expect_refused({.kind = kExponential, .gamma = 1.5, .every_steps = 1}, "`lr-gamma`");
  expect_refused({.kind = kStep}, "`lr-step`");
  expect_refused({.kind = kPolynomial, .power = 0}, "`lr-power`");
  expect_refused({.kind = kWsd, .decay_fraction = 1.5}, "`lr-decay-fraction`");
  expect_refused({.kind = kWsd, .decay_fraction = -0.1}, "`lr-decay-fraction`");
  expect_refused({.kind = kWsd, .warmup_steps = 60, .decay_fraction = 0.5}, "`lr-decay-fraction`");
  for (const LearningRateKind kind : {kPolynomial, kWsd, kOneCycle}) {
    EXPECT_THROW(validate({.kind = kind}, 0), Error) << name_of(kind);
    EXPECT_NO_THROW(validate({.kind = kind}, 100)) << name_of(kind);
  }
  EXPECT_NO_THROW(validate({.kind = kMultistep, .milestones = {{20}}}, 0));
  EXPECT_THROW(validate({.kind = kMultistep, .milestones = {{0.2, true}}}, 0), Error);
  EXPECT_NO_THROW(validate({.kind = kInverseSqrt}, 0));
}

}  // namespace
}  // namespace pipetrain
