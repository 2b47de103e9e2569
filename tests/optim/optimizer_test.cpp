#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(Optimizer, NamesGoBothWays) {
  for (const char* name : {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars", "lion"}) {
    EXPECT_EQ(name_of(optimizer_named(name)), name);
  }
  try {
    optimizer_named("lyon");
    FAIL() << "an unknown name was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("\"lyon\""), std::string::npos);
    EXPECT_NE(error.message().find("adamw, adam, sgd, rmsprop, adagrad, lamb, lars, lion"),
              std::string::npos);
  }
}

TEST(Optimizer, HasTheCommandLinesDefaults) {
  const OptimizerSettings adamw = default_settings(OptimizerKind::kAdamW);
  EXPECT_EQ(adamw.weight_decay, 0.01);
  EXPECT_EQ(adamw.beta1, 0.9);
  EXPECT_EQ(adamw.beta2, 0.999);
  EXPECT_EQ(adamw.epsilon, 1e-8);
  EXPECT_EQ(default_settings(OptimizerKind::kSgd).momentum, 0.9);
  EXPECT_EQ(default_settings(OptimizerKind::kAdam).weight_decay, 0);
  EXPECT_EQ(default_learning_rate(OptimizerKind::kSgd), 1e-2);
  EXPECT_EQ(default_learning_rate(OptimizerKind::kAdamW), 1e-3);
  EXPECT_EQ(default_settings(OptimizerKind::kAdagrad).epsilon, 1e-10);
  EXPECT_EQ(default_learning_rate(OptimizerKind::kAdagrad), 1e-2);
  EXPECT_EQ(default_settings(OptimizerKind::kLamb).epsilon, 1e-6);
  EXPECT_EQ(default_settings(OptimizerKind::kLamb).weight_decay, 0.01);
  EXPECT_EQ(default_settings(OptimizerKind::kLars).momentum, 0.9);
  EXPECT_EQ(default_settings(OptimizerKind::kLars).weight_decay, 5e-4);
  EXPECT_EQ(default_settings(OptimizerKind::kLion).beta1, 0.9);
  EXPECT_EQ(default_settings(OptimizerKind::kLion).beta2, 0.99);
  EXPECT_EQ(default_settings(OptimizerKind::kLion).weight_decay, 0);
  EXPECT_EQ(default_learning_rate(OptimizerKind::kLion), 1e-4);
}

TEST(Optimizer, CountsItsStates) {
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kSgd}), 0);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kSgd, .momentum = 0.9}), 1);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kAdam}), 2);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kAdamW, .momentum = 0.9}), 2);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kRmsProp}), 1);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kRmsProp, .momentum = 0.5}), 2);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kRmsProp, .centered = true}), 2);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kAdagrad}), 1);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kLamb}), 2);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kLars}), 0);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kLars, .momentum = 0.9}), 1);
  EXPECT_EQ(state_slots({.kind = OptimizerKind::kLion}), 1);
  EXPECT_EQ(state_name({.kind = OptimizerKind::kAdam}, 1), "mean_square");
  EXPECT_EQ(state_name({.kind = OptimizerKind::kRmsProp, .centered = true}, 1), "mean");
  EXPECT_EQ(state_name({.kind = OptimizerKind::kAdagrad}, 0), "sum_of_squares");
  EXPECT_EQ(state_name({.kind = OptimizerKind::kLamb}, 1), "mean_square");
  EXPECT_EQ(state_name({.kind = OptimizerKind::kLars, .momentum = 0.9}, 0), "momentum");
  EXPECT_EQ(state_name({.kind = OptimizerKind::kLion}, 0), "mean");
  EXPECT_THROW(state_name({.kind = OptimizerKind::kSgd}, 0), Error);
}

TEST(Optimizer, RefusesSettingsWithoutMeaning) {
  using enum OptimizerKind;
  EXPECT_NO_THROW(validate(default_settings(kAdamW)));
  EXPECT_THROW(validate({.kind = kAdam, .beta1 = 1}), Error);
  EXPECT_THROW(validate({.kind = kAdam, .beta2 = -0.1}), Error);
  EXPECT_THROW(validate({.kind = kSgd, .momentum = -1}), Error);
  EXPECT_THROW(validate({.kind = kRmsProp, .alpha = 1}), Error);
  EXPECT_THROW(validate({.kind = kRmsProp, .momentum = 0.9, .centered = true}), Error);
  EXPECT_NO_THROW(validate({.kind = kRmsProp, .centered = true}));
  EXPECT_THROW(validate({.kind = kSgd, .nesterov = true}), Error);
  EXPECT_THROW(validate({.kind = kSgd, .weight_decay = -1e-4}), Error);
}

TEST(Optimizer, AParameterMayHaveRatesOfItsOwn) {
  OptimizerSettings settings = default_settings(OptimizerKind::kAdamW);
  settings.own["head"] = {.learning_rate_scale = 10};
  settings.own["bias"] = {.weight_decay = 0};
  EXPECT_EQ(settings_of(settings, "head").learning_rate_scale, 10);
  EXPECT_EQ(settings_of(settings, "head").settings.weight_decay, settings.weight_decay);
  EXPECT_EQ(settings_of(settings, "bias").settings.weight_decay, 0);
  EXPECT_EQ(settings_of(settings, "other").settings.weight_decay, settings.weight_decay);
  EXPECT_EQ(settings_of(settings, "other").learning_rate_scale, 1);
  EXPECT_EQ(kept_slots(settings), 2);
  settings.average_decay = 0.9;
  EXPECT_EQ(kept_slots(settings), 3);
}

}  // namespace
}  // namespace pipetrain
